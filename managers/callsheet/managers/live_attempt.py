"""One running attempt, as the runtime keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from callsheet.managers.clock import GrantMeter
from callsheet.managers.ends import StopOrder
from callsheet.managers.executor import Attempt
from callsheet.managers.fencing import ActionId, Token
from callsheet.timing.waits import SHORTEST_WAIT_S
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

    def executed_s(self, now: float) -> float:
        """Returns the seconds of that in which it did not wait."""
        return max(self.execution_s(now) - sum(self.attempt.waits.until(now).values()), 0.0)

    def waited_s(self, now: float) -> dict[str, float]:
        """Returns what it waited for until `now`: with `executed_s` that is all of its time."""
        waits, waited = self.attempt.waits, self.attempt.waits.until(now)
        rest_s = now - self.began - self.execution_s(now) - sum(waits.stood.values())
        stood = {**waits.stood, self.attempt.stands_for: rest_s}
        for cause, seconds in stood.items():
            if seconds >= SHORTEST_WAIT_S:
                waited[cause] = waited.get(cause, 0.0) + seconds
        return {cause.value: seconds for cause, seconds in waited.items()}

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
