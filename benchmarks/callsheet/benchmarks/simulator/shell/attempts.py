"""Attempts between the core, which dispatches them, and the world, which runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from callsheet.benchmarks.peers import manager_of
from callsheet.benchmarks.simulator.policy import EndFacts, Task
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptResult,
    AttemptStarted,
    AttemptSucceeded,
)
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, FailureKind, TimeoutKind, Token

TIMED_OUT = AttemptFailed(FailureKind.TIMEOUT, "start_to_close", timeout=TimeoutKind.START_TO_CLOSE)
NO_ROOM = AttemptFailed(FailureKind.INFRA, "no_room", "the node has no place for the model now")


@dataclass(slots=True, eq=False)
class OpenAction:
    """An action between its submit and its outcome.

    Attributes:
        task: What the world calls it, while it is ready to start there.
        dispatch: The core's word that it may start; kept until the attempt ends.
    """

    key: ActionKey
    task: Task | None = None
    dispatch: Dispatch | None = None


class Attempts:
    """Open actions and their attempts.

    An attempt starts once the world says that its task is ready and the core says where it runs, whichever comes first.

    Attributes:
        submitted: Actions so far.
        outcomes: Those that have their outcome.
        started: Attempts so far.
    """

    def __init__(self, start: Callable[[Task, Dispatch], None]) -> None:
        self.submitted = 0
        self.outcomes = 0
        self.started = 0
        self._start = start
        self._open: dict[ActionKey, OpenAction] = {}
        self._running: dict[Token, Task] = {}

    def running(self, token: Token) -> Task | None:
        """The task of an attempt, while the world runs it."""
        return self._running.get(token)

    def find(self, key: ActionKey) -> OpenAction | None:
        """An action without an outcome."""
        return self._open.get(key)

    def submit(self, key: ActionKey, task: Task | None) -> None:
        """Notes a new action; one without a task is not yet ready in the world."""
        self._open[key] = OpenAction(key, task)
        self.submitted += 1

    def ready(self, action: OpenAction, task: Task) -> None:
        """The world lets an action start, for the first time or again."""
        if action.dispatch is None:
            action.task = task
        else:
            self._begin(task, action.dispatch)

    def dispatched(self, dispatch: Dispatch) -> None:
        """The core lets an action start."""
        action = self._open[dispatch.request.key]
        action.dispatch = dispatch
        task, action.task = action.task, None
        if task is not None:
            self._begin(task, dispatch)

    def _begin(self, task: Task, dispatch: Dispatch) -> None:
        self.started += 1
        self._running[dispatch.token] = task
        self._start(task, dispatch)

    def refuse(self, task: Task, dispatch: Dispatch) -> AttemptEnded:
        """The node has no place for an attempt after all: it goes back to the core, and its task is still ready."""
        action = self._open[dispatch.request.key]
        action.task, action.dispatch = task, None
        self._running.pop(dispatch.token, None)
        self.started -= 1
        return _end(dispatch, NO_ROOM, None)

    def ended(self, action: OpenAction, dispatch: Dispatch, facts: EndFacts, held_mib: int) -> AttemptEnded:
        """What its manager tells the core of an action's attempt, and of what the sandbox it was in holds now."""
        action.task = action.dispatch = None
        self._running.pop(dispatch.token, None)
        return _end(dispatch, _result(dispatch, facts), facts, held_mib)

    def delivered(self, key: ActionKey) -> None:
        """An action has its outcome.

        Raises:
            KeyError: It has one already, or was never submitted.
        """
        del self._open[key]
        self.outcomes += 1


def begun(dispatch: Dispatch) -> AttemptStarted:
    """What the manager tells the core when an attempt begins."""
    return AttemptStarted(manager_of(dispatch), dispatch.token)


def _end(dispatch: Dispatch, result: AttemptResult, facts: EndFacts | None, held_mib: int = 0) -> AttemptEnded:
    return AttemptEnded(
        manager_of(dispatch),
        dispatch.token,
        dispatch.request.key,
        dispatch.attempt,
        result,
        started=facts is not None,
        execution_s=facts.execution_s if facts is not None else 0.0,
        body_hash=dispatch.request.body_hash,
        usage=facts,
        sandbox_held_mib=held_mib,
    )


def _result(dispatch: Dispatch, facts: EndFacts) -> AttemptResult:
    if facts.timed_out:
        return TIMED_OUT
    if facts.failed:
        kind = FailureKind.QUOTA if facts.retry_after_s else FailureKind.INFRA
        return AttemptFailed(kind, "attempt_failed", retry_after=facts.retry_after_s)
    request = dispatch.request
    if request.kind is not ActionKind.ENV_RESET:
        return AttemptSucceeded(b"")
    return AttemptSucceeded(b"", f"{request.trajectory_id}/{dispatch.attempt}", request.trajectory_id)
