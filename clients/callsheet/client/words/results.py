"""The values of successes: tokens, sandboxes, finished commands, responses, scores. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from callsheet.client.words.options import LogProbsMode


class FinishReason(Enum):
    """The reason of a generation's end."""

    UNSPECIFIED = "unspecified"
    """No reason was told, or a reason newer than this client."""
    STOP = "stop"
    """The model produced a stop token."""
    LENGTH = "length"
    """The generation reached `max_new_tokens` or the model's context."""
    ABORT = "abort"
    """The generation was aborted; the result has the tokens up to then."""


@dataclass(frozen=True, slots=True)
class PolicyVersionSpan:
    """Policy version `version` made the output tokens `begin` up to `end` (exclusive)."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Tokens and their log-probabilities.

    Attributes:
        token_ids: New tokens, the prompt left out; shape (n,).
        log_probs: Natural logarithm of each token's probability, of the distribution that `log_probs_mode` names; shape
            (n,).
        finish_reason: The reason of the end.
        policy_versions: The versions that made the tokens, in order; they cover all tokens.
        cached_tokens: Prompt tokens found in the engine's cache.
        log_probs_mode: The distribution of the log-probabilities.
        seed: The seed of the sampling, given or drawn. The same prompt, weights and seed give the same tokens. None if
            the engine does not tell the seed.
        text: Text of the new tokens, special tokens left out; None if the engine has no tokenizer.
        begun_version: The policy version that the engine served at the start; None if the engine does not tell it.
            Where the first of `policy_versions` differs, an update with mode "keep" came before the first token, and
            the KV of the prompt may be of both versions.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    policy_versions: tuple[PolicyVersionSpan, ...] = ()
    cached_tokens: int = 0
    log_probs_mode: LogProbsMode = LogProbsMode.SAMPLED
    seed: int | None = None
    text: str | None = None
    begun_version: int | None = None


class OutputStream(Enum):
    """One of a command's two outputs."""

    UNSPECIFIED = "unspecified"
    """No output was told, or one newer than this client."""
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A part of a running command's output.

    Attributes:
        stream: The output.
        content: The bytes.
        offset: Number of bytes of this output before `content`.
        dropped_bytes: Bytes of this output between the part before and this part that were lost on the way.
    """

    stream: OutputStream
    content: bytes
    offset: int = 0
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The place of a step in its session.

    Attributes:
        started: The session began with this step, without the state of an earlier session of the name.
        ended: The session ended with this step, for instance by `exit` or because nothing else could stop the step. The
            next step that names the session begins another one.
    """

    started: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file that an `EnvStep` asked for.

    Attributes:
        path: The path in the request.
        content: The file's bytes; None for a refusal.
        refusal: The reason for a missing content: "missing", "not_a_file" (a directory, a symbolic link or a path
            through one), "too_large" (the files of one step together) or "unreadable"; empty with content.
    """

    path: str
    content: bytes | None = field(default=None, repr=False)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command.

    Attributes:
        exit_code: The exit code; minus `signal` if a signal ended the command, as in `subprocess`. So 0 is always a
            success.
        stdout: Standard output; head and tail if the output was too long.
        stderr: Standard error; head and tail if the output was too long.
        signal: The signal that ended the command; None if the command exited by itself.
        stdout_dropped_bytes: Bytes left out between head and tail of `stdout`.
        stderr_dropped_bytes: Bytes left out between head and tail of `stderr`.
        wall_s: Wall-clock seconds.
        session: The place of the step in its session; None without a session.
        downloads: The requested files, in the order of the request; none if the command was stopped.
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
        set_up: The set-up command's result; None without a set-up command.
        set_up_reused: The sandbox began with the files of an earlier run of the same set-up; `set_up` is that run's
            result.
        image_digest: "sha256:..." of an image from a registry, which names exactly these files; else empty.
    """

    sandbox_id: str
    set_up: CommandResult | None = None
    set_up_reused: bool = False
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """A tool's response, as the service defines it."""

    response: bytes


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
        log_probs: For a teacher: natural logarithms, one for each of `token_ids`; shape (n,).
        token_ids: For a teacher: the tokens that it looked at; shape (n,).
        text: For a judge: its whole answer, also in a failure.
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


Result: TypeAlias = GenerateResult | EnvResetResult | CommandResult | ToolCallResult | RewardResult
