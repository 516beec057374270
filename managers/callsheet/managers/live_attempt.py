"""One running attempt, as the runtime keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from callsheet.managers.clock import GrantMeter
from callsheet.managers.ends import StopOrder
from callsheet.managers.executor import Attempt
from callsheet.managers.fencing import ActionId, Token
from callsheet.v1 import action_pb2, manager_service_pb2


@dataclass(slots=True, eq=False)
class LiveAttempt:
    """An attempt that has started and whose end has not been reported.

    Attributes:
        began: When it started, in monotonic seconds.
        resize_wanted: The executor has not been told of the newest grant yet.
        resizing: A task tells the executor.
    """

    attempt: Attempt
    began: float
    meter: GrantMeter
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    order: StopOrder | None = None
    ended: bool = False
    resize_wanted: bool = False
    resizing: bool = False

    @property
    def token(self) -> Token:
        """Its fencing token."""
        return Token.of(self.attempt.grant.token)

    @property
    def action_id(self) -> ActionId:
        """Its action."""
        return self.attempt.action.job_id, self.attempt.action.action_id

    def execution_s(self, now: float) -> float:
        """Returns its execution clock at the monotonic time `now`."""
        charged = self.attempt.execution_clock
        return max(now - self.began, 0.0) if charged is None else charged(now)

    def log_context(self) -> dict[str, object]:
        """Returns the ids that every log line about it carries."""
        return describe_for_log(self.attempt.grant, self.attempt.action)


def describe_for_log(grant: manager_service_pb2.Grant, action: action_pb2.ActionSpec) -> dict[str, object]:
    """Returns the ids that a log line about an attempt carries."""
    return {
        "job": action.job_id,
        "trajectory": action.trajectory_id,
        "action": action.action_id,
        "attempt": grant.attempt,
        "token": tuple(Token.of(grant.token)),
    }
