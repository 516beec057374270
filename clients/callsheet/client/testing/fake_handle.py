"""The handle of an action of a fake client: its outcome is what a script makes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar

import anyio
from callsheet.client.backend import ActionHandle
from callsheet.client.errors import RefusedError
from callsheet.client.step_summary import StepTallies, ended_by_outcome
from callsheet.client.words.actions import Action, EnvStep, Submission
from callsheet.client.words.arguments import instance
from callsheet.client.words.outcomes import Cancelled, Outcome
from callsheet.client.words.results import CommandResult, OutputChunk, OutputStream

T = TypeVar("T")


class FakeHandle(ActionHandle[T]):
    """An action of a `FakeClient`."""

    def __init__(
        self,
        submission: Submission[T],
        script: Callable[[Any], Any],
        cancelled: list[tuple[str, str, str]],
        steps: StepTallies,
    ) -> None:
        super().__init__(submission.job_id, submission.action_id)
        self._action: Action[T] = submission.action
        self._script = script
        self._cancelled = cancelled
        self._steps = steps
        self._ended: Outcome[T] | RefusedError | None = None
        self._running = anyio.Lock()
        self._script_scope = anyio.CancelScope()

    @property
    def done(self) -> bool:
        """Whether the outcome (or the refusal) is there."""
        return self._ended is not None

    async def accepted(self) -> None:
        """Returns at once."""

    async def outcome(self) -> Outcome[T]:
        """Runs the script, once."""
        async with self._running:
            if self._ended is None:
                await self._run()
        if isinstance(self._ended, RefusedError):
            raise self._ended
        assert self._ended is not None
        return self._ended

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields the output of the script's result, each stream as one part, if the action asks for it."""
        result = getattr(await self.outcome(), "value", None)
        if isinstance(self._action, EnvStep) and self._action.stream_output and isinstance(result, CommandResult):
            for stream, content in ((OutputStream.STDOUT, result.stdout), (OutputStream.STDERR, result.stderr)):
                if content:
                    yield OutputChunk(stream, content)

    async def cancel(self, reason: str = "") -> None:
        """Makes the outcome Cancelled, unless the script has made one."""
        self.abandon(instance("reason", reason, str, "text"))

    def abandon(self, reason: str) -> None:
        """Like `cancel`."""
        if self._ended is None:
            self._cancelled.append((self.job_id, self.action_id, reason))
            self.end_as_cancelled(reason)

    def end_as_cancelled(self, reason: str) -> None:
        """Makes the outcome Cancelled, unless there is one."""
        if self._ended is None:
            self._end(Cancelled(reason, job_id=self.job_id, action_id=self.action_id))
            self._script_scope.cancel()

    async def _run(self) -> None:
        with self._script_scope:
            try:
                made = self._script(self._action)
                outcome = await made if inspect.isawaitable(made) else made
            except RefusedError as refusal:
                self._ended = refusal
            else:
                self._end(replace(outcome, job_id=self.job_id, action_id=self.action_id))

    def _end(self, outcome: Outcome[T]) -> None:
        self._ended = outcome
        self._steps.ended(self.job_id, ended_by_outcome(self._action.kind, outcome))
