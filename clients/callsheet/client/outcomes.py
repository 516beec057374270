"""What became of an action: data, never an exception.

    match await trajectory.env_step(Command.shell("make test")):
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

from callsheet.client.errors import NotSucceededError

T = TypeVar("T")


class FailureKind(Enum):
    """Who or what a failure is due to."""

    UNSPECIFIED = "unspecified"
    """Not told, or a kind newer than this client."""
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
    """The attempt was stopped on request. Clients see `Cancelled` instead."""


class TimeoutKind(Enum):
    """Which of the four timeouts ran out."""

    UNSPECIFIED = "unspecified"
    """None did."""
    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    SCHEDULE_TO_CLOSE = "schedule_to_close"
    HEARTBEAT = "heartbeat"


class FinishReason(Enum):
    """Why generation ended."""

    UNSPECIFIED = "unspecified"
    """Not told, or a reason newer than this client."""
    STOP = "stop"
    """A stop token was produced."""
    LENGTH = "length"
    """`max_new_tokens` or the model's context was reached."""
    ABORT = "abort"
    """It was aborted; the tokens so far are here."""


@dataclass(frozen=True, slots=True)
class PolicyVersionSpan:
    """Output tokens `begin` up to `end` (exclusive) were made by policy version `version`."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Tokens and their log-probabilities.

    Attributes:
        token_ids: New tokens, the prompt left out; shape (n,).
        log_probs: Natural logarithm of each token's probability at temperature 1; shape (n,).
        finish_reason: Why it ended.
        policy_versions: Which version made which tokens; covers all tokens in order.
        cached_tokens: Prompt tokens found in the engine's cache.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    policy_versions: tuple[PolicyVersionSpan, ...] = ()
    cached_tokens: int = 0


class OutputStream(Enum):
    """Which of a command's two outputs."""

    UNSPECIFIED = "unspecified"
    """Not told, or newer than this client."""
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A part of what a command prints, while it runs.

    Attributes:
        stream: Which output.
        content: The bytes.
        offset: Bytes of this output before them.
        dropped_bytes: Bytes of this output between the part before and this one that were lost on the way.
    """

    stream: OutputStream
    content: bytes
    offset: int = 0
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SessionReport:
    """What a step was in its session.

    Attributes:
        started: The session began with it: what an earlier session of this name held is not there.
        ended: The session ended with it, for instance by `exit` or because it could not be stopped otherwise. The next
            step that names it begins another.
    """

    started: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file that was asked for.

    Attributes:
        path: As it was asked for.
        content: Its bytes; None if there are none to give.
        refusal: Why there are none: "missing", "not_a_file" (a directory, a symbolic link or a path through one),
            "too_large" (the files of one step together) or "unreadable"; empty if there are.
    """

    path: str
    content: bytes | None = field(default=None, repr=False)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command.

    Attributes:
        exit_code: Meaningless if `signal` is set.
        stdout: Standard output, head and tail if it was too long.
        stderr: Standard error, likewise.
        signal: The signal that ended it; None if it exited by itself.
        stdout_dropped_bytes: Bytes left out between head and tail.
        stderr_dropped_bytes: Likewise.
        wall_s: Wall-clock seconds.
        session: What the step was in its session; None if it ran in none.
        downloads: The files that were asked for, in that order; none if the command was stopped.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    signal: int | None = None
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    wall_s: float = 0.0
    session: SessionReport | None = None
    downloads: tuple[DownloadedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvResetResult:
    """A live sandbox.

    Attributes:
        sandbox_id: Identifies this incarnation of the trajectory's sandbox.
        set_up: The set-up command's result; None if there was none.
        set_up_reused: The sandbox began with the files of an earlier run of the same set-up, whose result `set_up` is.
    """

    sandbox_id: str
    set_up: CommandResult | None = None
    set_up_reused: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """A tool's response, as the service defines it."""

    response: bytes


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score.

    Attributes:
        score: For tests the share passed, 0 to 1; for models what they return.
        passed: Tests that passed; 0 for models.
        total: Tests that ran, skipped ones left out; 0 for models.
        command: The test run; None for models.
    """

    score: float
    passed: int = 0
    total: int = 0
    command: CommandResult | None = None


Result: TypeAlias = GenerateResult | EnvResetResult | CommandResult | ToolCallResult | RewardResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When things happened; None where a step was never reached.

    Attributes:
        submitted_at: The submit arrived.
        first_dispatched_at: The first attempt was dispatched.
        dispatched_at: The last attempt was dispatched; its grant began.
        started_at: The manager said the last attempt started.
        ended_at: The last attempt's end arrived.
        queue_s: Waiting to be dispatched, over all attempts.
        execution_s: The manager executing the last attempt, by its own clock, pauses left out.
        overhead_s: Everything else between submit and end: transport, dispatch, commit, lost attempts.
        paused_s: Paused, over all attempts.
        start_wait_s: The part of `queue_s` before its trajectory was let begin.
    """

    submitted_at: float | None = None
    first_dispatched_at: float | None = None
    dispatched_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    queue_s: float = 0.0
    execution_s: float = 0.0
    overhead_s: float = 0.0
    paused_s: float = 0.0
    start_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the last attempt used.

    Attributes:
        cpu_s: CPU seconds, user and system, of all its processes.
        peak_memory_bytes: Largest memory use; None if it was not measured.
        granted_unit_s: Units granted over time, in unit-seconds by resource ("cpu": core-seconds).
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    granted_unit_s: Mapping[str, float] = field(default_factory=dict)


_NO_TIMELINE = Timeline()
_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What every outcome tells.

    Attributes:
        job_id: The job of the action.
        action_id: The action.
        timeline: When things happened.
        usage: What the last attempt used.
        attempts: Attempts that were dispatched.
        manager_id: The manager of the last attempt; empty if it was never dispatched.
    """

    job_id: str = ""
    action_id: str = ""
    timeline: Timeline = _NO_TIMELINE
    usage: Usage = _NO_USAGE
    attempts: int = 0
    manager_id: str = ""


@dataclass(frozen=True, slots=True)
class Succeeded(Ended, Generic[T]):
    """The action ran to its end. For commands this includes non-zero exit codes."""

    value: T

    def unwrap(self) -> T:
        """Returns the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Failed(Ended, Generic[T]):
    """The action's last attempt failed.

    Attributes:
        kind: Due to whom.
        reason: A stable word for programs, for instance "state_lost", "out_of_memory", "set_up_failed".
        message: A sentence for people.
        partial: What was produced before, for instance the output of a command that timed out.
        timeout: The timeout, where `kind` is TIMEOUT or a heartbeat was missed; else UNSPECIFIED.
        retry_after_s: For QUOTA: the provider's Retry-After; None if it gave none.
    """

    kind: FailureKind
    reason: str = ""
    message: str = ""
    partial: T | None = None
    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED
    retry_after_s: float | None = None

    def unwrap(self) -> NoReturn:
        """Raises NotSucceededError."""
        raise NotSucceededError(self)


@dataclass(frozen=True, slots=True)
class Cancelled(Ended, Generic[T]):
    """The action was cancelled by its client, its trajectory, its group or staleness.

    Attributes:
        reason: Why, as a sentence.
        partial: What was produced before, for instance partial tokens.
    """

    reason: str = ""
    partial: T | None = None

    def unwrap(self) -> NoReturn:
        """Raises NotSucceededError."""
        raise NotSucceededError(self)


@dataclass(frozen=True, slots=True)
class Expired(Ended):
    """A deadline ran out before the action could finish.

    Attributes:
        timeout: Which one.
    """

    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED

    def unwrap(self) -> NoReturn:
        """Raises NotSucceededError."""
        raise NotSucceededError(self)


Outcome: TypeAlias = Succeeded[T] | Failed[T] | Cancelled[T] | Expired
