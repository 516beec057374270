"""At most one run of a state-changing action in a sandbox: a pure memory of what has run there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from callsheet.managers.ends import refusal
from callsheet.managers.fencing import Token
from callsheet.v1 import action_pb2, manager_service_pb2
from callsheet.v1.rewards import scores_in_sandbox

ENDS_KEPT = 2
"""Ends kept whole in each sandbox. Actions of a sandbox run one at a time, so only the newest can come back."""


def runs_in_sandbox(action: action_pb2.ActionSpec) -> bool:
    """Returns whether an action changes the state of its trajectory's sandbox."""
    payload = action.WhichOneof("payload")
    if payload == "env_step":
        return True
    return payload == "reward" and scores_in_sandbox(action.reward)


@dataclass(slots=True)
class _Sandbox:
    """Actions that have run in one sandbox: their ids in order, with their ends as far as they are kept."""

    sandbox_id: str
    finished: dict[str, manager_service_pb2.AttemptEnded | None] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


class SandboxMemory:
    """Remembers, for each trajectory's sandbox, which actions have ended in it."""

    def __init__(self) -> None:
        self._sandboxes: dict[tuple[str, str], _Sandbox] = {}

    def remember(self, action: action_pb2.ActionSpec, sandbox_id: str, end: manager_service_pb2.AttemptEnded) -> None:
        """Notes that an attempt which had started in a sandbox ended there.

        A sandbox with another id takes the place of the trajectory's former one.
        """
        place = (action.job_id, action.trajectory_id)
        sandbox = self._sandboxes.get(place)
        if sandbox is None or sandbox.sandbox_id != sandbox_id:
            sandbox = self._sandboxes[place] = _Sandbox(sandbox_id)
        sandbox.finished[action.action_id] = end
        sandbox.kept.append(action.action_id)
        if len(sandbox.kept) > ENDS_KEPT:
            sandbox.finished[sandbox.kept.pop(0)] = None

    def recall(self, dispatch: manager_service_pb2.Dispatch) -> manager_service_pb2.AttemptEnded | None:
        """Returns the end to report if this action has already run in this sandbox, otherwise None."""
        action, grant = dispatch.action, dispatch.grant
        sandbox = self._sandboxes.get((action.job_id, action.trajectory_id))
        if sandbox is None or sandbox.sandbox_id != grant.sandbox_id or action.action_id not in sandbox.finished:
            return None
        stored = sandbox.finished[action.action_id]
        if stored is None:
            message = "the action has run in this sandbox before and its result is no longer kept"
            return refusal(grant, "already_ran", message, started=True)
        return _retold(stored, grant)

    def forget(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """Drops a sandbox that is gone; one that is unknown, or whose id differs, is no error."""
        place = (sandbox.job_id, sandbox.trajectory_id)
        known = self._sandboxes.get(place)
        if known is not None and known.sandbox_id == sandbox.sandbox_id:
            del self._sandboxes[place]

    def retain(self, live: Iterable[manager_service_pb2.SandboxState]) -> None:
        """Drops every sandbox that is not among the live ones."""
        alive = {sandbox.sandbox_id for sandbox in live}
        self._sandboxes = {place: sandbox for place, sandbox in self._sandboxes.items() if sandbox.sandbox_id in alive}

    def __len__(self) -> int:
        return len(self._sandboxes)


def _retold(
    stored: manager_service_pb2.AttemptEnded, grant: manager_service_pb2.Grant
) -> manager_service_pb2.AttemptEnded:
    end = manager_service_pb2.AttemptEnded()
    end.CopyFrom(stored)
    end.token.CopyFrom(Token.of(grant.token).message())
    end.attempt = grant.attempt
    return end
