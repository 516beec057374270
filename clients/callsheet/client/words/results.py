"""What a success brings: tokens, sandboxes, finished commands, responses, scores. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from callsheet.client.words.sampling import LogProbsMode


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
        log_probs: Natural logarithm of each token's probability, of the distribution that `log_probs_mode` names; shape
            (n,).
        finish_reason: Why it ended.
        policy_versions: Which version made which tokens; covers all tokens in order.
        cached_tokens: Prompt tokens found in the engine's cache.
        log_probs_mode: Of which distribution the log-probabilities are.
        seed: The seed that was used, given or drawn; the same prompt and weights give the same tokens with it. None if
            the engine does not tell.
        text: Text of the new tokens, special tokens left out; None if the engine has no tokenizer.
        begun_version: The policy version that its engine served when it was let begin; None if that is not told. Where
            the first of `policy_versions` is another one, an update with mode "keep" came before its first token: the
            KV of its prompt may be of both.
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
        image_digest: "sha256:..." of an image that came from a registry, which names exactly these files; else empty.
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
        score: For tests the share passed, 0 to 1; for models what they return: the raw logit of a head, the sum of a
            teacher's log-probabilities, or what a judge gave.
        passed: Tests that passed; 0 for models.
        total: Tests that ran, skipped ones left out; 0 for models.
        command: The test run, or the script's; None for models.
        components: Named parts of the score, for scorers that tell them.
        log_probs: Of a teacher: natural logarithms, one for each of `token_ids`; shape (n,).
        token_ids: Of a teacher: the tokens that it looked at; shape (n,).
        text: Of a judge: its whole answer, in a failure too.
        line_s: Of a hosted model: seconds at its manager before its batch began, the restore included.
        restore_s: Of a hosted model: seconds of `line_s` in which its weights were brought in.
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
