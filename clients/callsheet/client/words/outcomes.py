"""The outcome of an action: data, never an exception.

    match await trajectory.env_step("make test"):
        case Succeeded(value=result):
            print(result.exit_code, result.stdout)
        case Failed(kind=FailureKind.INFRA, reason=reason):
            print("not the model's fault:", reason)
        case other:
            print(other)

Times are Unix seconds by the scheduler's clock, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NoReturn, TypeAlias, TypeVar

from callsheet.client.errors import (
    ActionCancelledError,
    ActionExpiredError,
    ActionTimeoutError,
    EnvError,
    InfraError,
    NotSucceededError,
    PolicyError,
    QuotaError,
    ResourceLimitError,
)
from callsheet.client.words.reasons import Reason

T = TypeVar("T")

_MAX_LINE = 200


class FailureKind(Enum):
    """The side at fault in a failure."""

    UNSPECIFIED = "unspecified"
    """No kind was told, or a kind newer than this client."""
    POLICY = "policy"
    """The model's own fault."""
    ENV = "env"
    """The environment's own fault, for instance a set-up command that fails."""
    INFRA = "infra"
    """Machines, processes or networks of the service: never a reward of 0."""
    TIMEOUT = "timeout"
    """The execution clock ran out."""
    QUOTA = "quota"
    """An outside quota."""
    RESOURCE_LIMIT = "resource_limit"
    """The attempt passed a limit of its sandbox: memory, processes or disk."""
    CANCELLED = "cancelled"
    """A request stopped the attempt. Clients see `Cancelled` instead."""


class TimeoutKind(Enum):
    """The timeout that ran out, of four."""

    UNSPECIFIED = "unspecified"
    """No timeout ran out."""
    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    SCHEDULE_TO_CLOSE = "schedule_to_close"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The times of an action's steps; None for a step that was never reached.

    Attributes:
        submitted_at: The scheduler received the submit.
        first_dispatched_at: The scheduler dispatched the first attempt.
        dispatched_at: The scheduler dispatched the last attempt, whose grant began.
        started_at: The manager reported the start of the last attempt.
        ended_at: The scheduler received the last attempt's end.
        queue_s: Time in the queue before a dispatch, over all attempts.
        execution_s: Execution of the last attempt by the manager's clock, without waits.
        overhead_s: The rest of the time between submit and end: transport, dispatch and journal.
        start_wait_s: The part of `queue_s` before the scheduler let the trajectory begin.
        waited_s: Waits after the dispatch, by cause, such as "cores" or "image"; see docs/concepts/outcomes.md.
    """

    submitted_at: float | None = None
    first_dispatched_at: float | None = None
    dispatched_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    queue_s: float = 0.0
    execution_s: float = 0.0
    overhead_s: float = 0.0
    start_wait_s: float = 0.0
    waited_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting_s(self) -> float:
        """All waits after the dispatch. With queue, execution and overhead their sum is the time from submit to end."""
        return sum(self.waited_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources that the last attempt used.

    Attributes:
        cpu_s: CPU seconds, user and system, of all processes of the attempt.
        peak_memory_bytes: Largest memory use; None if nothing measured it.
        granted_unit_s: Units granted during the execution, in unit-seconds by resource ("cpu": core-seconds). A waiting
            attempt has no grant.
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    granted_unit_s: Mapping[str, float] = field(default_factory=dict)


_NO_TIMELINE = Timeline()
_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The common part of all outcomes.

    Attributes:
        job_id: The job of the action.
        action_id: The action.
        timeline: The times of the action's steps.
        usage: The resources that the last attempt used.
        attempts: Number of dispatched attempts.
        manager_id: The manager of the last attempt; empty if no attempt was dispatched.
    """

    job_id: str = ""
    action_id: str = ""
    timeline: Timeline = _NO_TIMELINE
    usage: Usage = _NO_USAGE
    attempts: int = 0
    manager_id: str = ""


@dataclass(frozen=True, slots=True)
class Succeeded(Ended, Generic[T]):
    """The action ran to its end. A command with a non-zero exit code succeeds, too."""

    value: T

    def unwrap(self) -> T:
        """Returns the value."""
        return self.value

    def __str__(self) -> str:
        """One line."""
        return _line("succeeded", _shortened(repr(self.value)), self)


@dataclass(frozen=True, slots=True)
class Failed(Ended, Generic[T]):
    """The action's last attempt failed.

    Attributes:
        kind: The side at fault.
        reason: A word for programs, of a closed vocabulary.
        message: A sentence for people.
        partial: The result up to the failure, for instance the output of a command that timed out.
        timeout: The timeout, where `kind` is TIMEOUT or a heartbeat was missed; else UNSPECIFIED.
        retry_after_s: For QUOTA: the provider's Retry-After; None if it gave none.
    """

    kind: FailureKind
    reason: Reason = Reason.OTHER
    message: str = ""
    partial: T | None = None
    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED
    retry_after_s: float | None = None

    def unwrap(self) -> NoReturn:
        """Raises the NotSucceededError of `kind`, for instance InfraError."""
        raise _ERRORS.get(self.kind, NotSucceededError)(self)

    def __str__(self) -> str:
        """One line: kind, reason, message and action."""
        return _line(f"failed: {self.kind.name} {self.reason}", self.message, self)


@dataclass(frozen=True, slots=True)
class Cancelled(Ended, Generic[T]):
    """The action was cancelled by its client, its trajectory, its group or staleness.

    Attributes:
        reason: The reason, as a sentence.
        partial: The result up to the cancel, for instance partial tokens.
    """

    reason: str = ""
    partial: T | None = None

    def unwrap(self) -> NoReturn:
        """Raises ActionCancelledError."""
        raise ActionCancelledError(self)

    def __str__(self) -> str:
        """One line: the reason, and the action."""
        return _line("cancelled", self.reason, self)


@dataclass(frozen=True, slots=True)
class Expired(Ended):
    """A deadline ran out before the action could finish.

    Attributes:
        timeout: The deadline that ran out.
    """

    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED

    def unwrap(self) -> NoReturn:
        """Raises ActionExpiredError."""
        raise ActionExpiredError(self)

    def __str__(self) -> str:
        """One line: the deadline, and the action."""
        return _line("expired", f"{self.timeout.value} ran out", self)


Outcome: TypeAlias = Succeeded[T] | Failed[T] | Cancelled[T] | Expired

_ERRORS: dict[FailureKind, type[NotSucceededError]] = {
    FailureKind.POLICY: PolicyError,
    FailureKind.ENV: EnvError,
    FailureKind.INFRA: InfraError,
    FailureKind.TIMEOUT: ActionTimeoutError,
    FailureKind.QUOTA: QuotaError,
    FailureKind.RESOURCE_LIMIT: ResourceLimitError,
    FailureKind.CANCELLED: ActionCancelledError,
}


def _line(what: str, message: str, ended: Ended) -> str:
    said = f"{what}: {_shortened(message)}" if message else what
    key = "/".join(filter(None, (ended.job_id, ended.action_id)))
    return f"{said} (action {key})" if key else said


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 3] + "..."
