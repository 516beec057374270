"""Values of outcome.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from callsheet.v1 import action_values, common_pb2, common_values, outcome_pb2
from callsheet.v1.values import TimelineMethods, mapping, seconds


class FailureKind(Enum):
    """The side at fault in a failure."""

    UNSPECIFIED = "unspecified"
    """Not a kind. Also a value that is newer than this code."""
    POLICY = "policy"
    """The model's own fault, for instance an action that cannot be carried out. Not retried."""
    ENV = "env"
    """The environment's own fault, for instance a set-up command that fails. Not retried."""
    INFRA = "infra"
    """Machines, processes or networks of the service: never a reward of 0. Retried if the action's kind allows it."""
    TIMEOUT = "timeout"
    """The execution clock ran out. Not retried."""
    QUOTA = "quota"
    """An outside quota. Retried after its Retry-After."""
    RESOURCE_LIMIT = "resource_limit"
    """The attempt passed a limit of its sandbox: memory, processes or disk. Not retried."""
    CANCELLED = "cancelled"
    """A request stopped the attempt. Only managers see it; the outcome is then Cancelled."""


FAILURE_KIND: Final[Mapping[int, FailureKind]] = {
    0: FailureKind.UNSPECIFIED,
    1: FailureKind.POLICY,
    2: FailureKind.ENV,
    3: FailureKind.INFRA,
    4: FailureKind.TIMEOUT,
    5: FailureKind.QUOTA,
    6: FailureKind.RESOURCE_LIMIT,
    7: FailureKind.CANCELLED,
}


class TimeoutKind(Enum):
    """The timeout that ran out, of four."""

    UNSPECIFIED = "unspecified"
    """No timeout ran out. Also a value that is newer than this code."""
    SCHEDULE_TO_START = "schedule_to_start"
    """From submit to first start."""
    START_TO_CLOSE = "start_to_close"
    """Execution of one attempt."""
    SCHEDULE_TO_CLOSE = "schedule_to_close"
    """From submit to outcome."""
    HEARTBEAT = "heartbeat"
    """Silence of a running attempt."""


TIMEOUT_KIND: Final[Mapping[int, TimeoutKind]] = {
    0: TimeoutKind.UNSPECIFIED,
    1: TimeoutKind.SCHEDULE_TO_START,
    2: TimeoutKind.START_TO_CLOSE,
    3: TimeoutKind.SCHEDULE_TO_CLOSE,
    4: TimeoutKind.HEARTBEAT,
}


class FinishReason(Enum):
    """The reason of a generation's end."""

    UNSPECIFIED = "unspecified"
    """Not a reason. Also a value that is newer than this code."""
    STOP = "stop"
    """The model produced a stop token."""
    LENGTH = "length"
    """The generation reached `max_new_tokens` or the model's context."""
    ABORT = "abort"
    """The generation was aborted; the result has the tokens up to then."""


FINISH_REASON: Final[Mapping[int, FinishReason]] = {
    0: FinishReason.UNSPECIFIED,
    1: FinishReason.STOP,
    2: FinishReason.LENGTH,
    3: FinishReason.ABORT,
}


@dataclass(frozen=True, slots=True)
class Timeline(TimelineMethods):
    """The times of an action's steps, by the scheduler's clock.

    A step that was never reached has none.

    Attributes:
        submitted_at: The scheduler received the submit.
        first_dispatched_at: The scheduler dispatched the first attempt.
        dispatched_at: The scheduler dispatched the last attempt, whose grant began.
        started_at: The manager reported the start of the last attempt.
        ended_at: The scheduler received the last attempt's end.
        queue_s: Seconds in the queue before a dispatch, over all attempts.
        execution_s: Seconds of execution of the last attempt by the manager's clock, without waits.
        overhead_s: The rest of the seconds between submit and end: transport, dispatch and journal.
        start_wait_s: The part of `queue_s` before the scheduler let the trajectory begin.
        waited_s: Seconds of waits after the dispatch, by cause, such as "cores" or "image": those of AttemptEnded,
            "attempts" for attempts before the last one and for one whose manager reported no end, and "scheduler" for a
            restart of the scheduler. See docs/concepts/outcomes.md.
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

    @classmethod
    def from_message(cls, message: outcome_pb2.Timeline) -> Self:
        """Returns the value of a message."""
        return cls(
            seconds(message.submitted) if message.HasField("submitted") else None,
            seconds(message.first_dispatched) if message.HasField("first_dispatched") else None,
            seconds(message.dispatched) if message.HasField("dispatched") else None,
            seconds(message.started) if message.HasField("started") else None,
            seconds(message.ended) if message.HasField("ended") else None,
            message.queue_s,
            message.execution_s,
            message.overhead_s,
            message.start_wait_s,
            mapping(message.waited_s),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that an attempt used.

    Attributes:
        cpu_s: CPU seconds, user and system, of all its processes.
        peak_memory_bytes: Largest memory use in bytes; None if nothing measured it.
        cost: Its cost. In an Outcome: the cost of all of the action's attempts that ended since the scheduler's start.
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    cost: common_values.Cost = field(default_factory=common_values.Cost)

    @classmethod
    def from_message(cls, message: outcome_pb2.Usage) -> Self:
        """Returns the value of a message."""
        return cls(
            message.cpu_s,
            message.peak_memory_bytes or None,
            common_values.Cost.from_message(message.cost),
        )


@dataclass(frozen=True, slots=True)
class PolicyVersionSpan:
    """Consecutive output tokens that one policy version produced.

    Attributes:
        version: The policy version.
        begin: Index of the first output token.
        end: Index after the last output token.
    """

    version: int
    begin: int
    end: int

    @classmethod
    def from_message(cls, message: outcome_pb2.PolicyVersionSpan) -> Self:
        """Returns the value of a message."""
        return cls(
            message.version,
            message.begin,
            message.end,
        )


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Tokens and their log-probabilities.

    Attributes:
        token_ids: New tokens, the prompt left out.
        log_probs: Natural logarithm of each token's probability under the distribution that `log_probs_mode` names; one
            per token.
        finish_reason: The reason of the end.
        policy_versions: The policy versions that made the tokens, in order; they cover all tokens.
        cached_tokens: Prompt tokens found in the engine's cache.
        log_probs_mode: The distribution of the log-probabilities.
        seed: The seed of the sampling, given or drawn. The same prompt, weights and seed give the same tokens. None if
            the engine does not report the seed.
        text: Text of the new tokens, special tokens left out; bytes that are not UTF-8 become U+FFFD. None if the
            engine has no tokenizer.
        begun_version: The policy version that the engine served at the start; None if the engine does not report it. If
            the first of `policy_versions` differs, an update with mode "keep" came before the first token, and the KV
            of the prompt may be of both versions.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    policy_versions: tuple[PolicyVersionSpan, ...] = ()
    cached_tokens: int = 0
    log_probs_mode: action_values.LogProbsMode = action_values.LogProbsMode.SAMPLED
    seed: int | None = None
    text: str | None = None
    begun_version: int | None = None

    @classmethod
    def from_message(cls, message: outcome_pb2.GenerateResult) -> Self:
        """Returns the value of a message."""
        return cls(
            tuple(message.token_ids),
            tuple(message.log_probs),
            FINISH_REASON.get(message.finish_reason, FinishReason.UNSPECIFIED),
            tuple(map(PolicyVersionSpan.from_message, message.policy_versions)),
            message.cached_tokens,
            action_values.LOG_PROBS_MODE.get(message.log_probs_mode, action_values.LogProbsMode.SAMPLED),
            message.seed if message.HasField("seed") else None,
            message.text if message.HasField("text") else None,
            message.begun_version if message.HasField("begun_version") else None,
        )


@dataclass(frozen=True, slots=True)
class EnvResetResult:
    """A live sandbox.

    Attributes:
        sandbox_id: Identifies this incarnation of the trajectory's sandbox.
        set_up: The set-up command's result; None without a set-up command.
        set_up_reused: Whether the sandbox began with the files of an earlier run of the same set-up; `set_up` is that
            run's result.
        image_digest: "sha256:..." of an image from a registry, which names exactly these files; else empty.
    """

    sandbox_id: str
    set_up: CommandResult | None = None
    set_up_reused: bool = False
    image_digest: str = ""

    @classmethod
    def from_message(cls, message: outcome_pb2.EnvResetResult, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            message.sandbox_id,
            CommandResult.from_message(message.set_up, read) if message.HasField("set_up") else None,
            message.set_up_reused,
            message.image_digest,
        )


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command.

    Attributes:
        exit_code: The exit code; minus `signal` if a signal ended the command, as in Python's `subprocess`. So 0 is
            always a success.
        stdout: Standard output; head and tail if the output was too long.
        stderr: Standard error; head and tail if the output was too long.
        signal: The signal that ended the command; None if the command exited by itself.
        stdout_dropped_bytes: Bytes left out between head and tail of `stdout`.
        stderr_dropped_bytes: Bytes left out between head and tail of `stderr`.
        wall_s: Wall-clock seconds.
        session: The place of the step in its session; None without a session.
        downloads: The requested files, in the order of the request; empty if the command was stopped.
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

    @classmethod
    def from_message(cls, message: outcome_pb2.CommandResult, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            -message.signal or message.exit_code,
            read(message.stdout),
            read(message.stderr),
            message.signal or None,
            message.stdout_dropped_bytes,
            message.stderr_dropped_bytes,
            message.wall_s,
            SessionReport.from_message(message.session) if message.HasField("session") else None,
            tuple(DownloadedFile.from_message(each, read) for each in message.downloads),
        )


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The place of a step in its session.

    Attributes:
        started: Whether the session began with this step, without the state of an earlier session of the name.
        ended: Whether the session ended with this step, for instance by `exit` or because nothing else could stop the
            step. The next step that names the session begins another one.
    """

    started: bool = False
    ended: bool = False

    @classmethod
    def from_message(cls, message: outcome_pb2.SessionReport) -> Self:
        """Returns the value of a message."""
        return cls(
            message.started,
            message.ended,
        )


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file that an env_step asked for.

    Attributes:
        path: The path in the request.
        content: The file's bytes; None for a refusal.
        refusal: The reason for a missing content: "missing", "not_a_file" (a directory, a symbolic link or a path
            through one), "too_large" (the files of one step together), or "unreadable"; empty with content.
    """

    path: str
    content: bytes | None = field(default=None, repr=False)
    refusal: str = ""

    @classmethod
    def from_message(cls, message: outcome_pb2.DownloadedFile, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            message.path,
            read(message.content) if message.HasField("content") else None,
            message.refusal,
        )


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """A tool's response.

    Attributes:
        response: The response, as the service defines it.
    """

    response: bytes

    @classmethod
    def from_message(cls, message: outcome_pb2.ToolCallResult, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            read(message.response),
        )


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score.

    Attributes:
        score: For tests the share that passed, 0 to 1. For models their answer: the raw logit of a head, the sum of a
            teacher's log-probabilities, or the score of a judge.
        passed: Tests that passed; 0 for models.
        total: Tests that ran, skipped tests left out; 0 for models.
        command: The run of the tests or of the script; None for models.
        components: Named parts of the score, for scorers that have parts.
        log_probs: For a teacher: natural logarithms, one for each of `token_ids`; the score is their sum.
        token_ids: For a teacher: the tokens that it looked at.
        text: For a judge: its whole answer, also in a failure for a missing score.
        line_s: For a hosted model: seconds at its manager before its batch began, the restore included.
        restore_s: For a hosted model: seconds of `line_s` in which the manager brought the weights in.
    """

    score: float
    passed: int = 0
    total: int = 0
    command: CommandResult | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    log_probs: tuple[float, ...] = ()
    token_ids: tuple[int, ...] = ()
    text: str = ""
    line_s: float = 0.0
    restore_s: float = 0.0

    @classmethod
    def from_message(cls, message: outcome_pb2.RewardResult, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            message.score,
            message.passed,
            message.total,
            CommandResult.from_message(message.command, read) if message.HasField("command") else None,
            mapping(message.components),
            tuple(message.log_probs),
            tuple(message.token_ids),
            message.text,
            message.line_s,
            message.restore_s,
        )
