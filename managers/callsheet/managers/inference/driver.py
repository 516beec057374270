"""The seam between the inference manager and an engine.

The shape follows what engines for reinforcement learning offer: token ids in and out, partial tokens after an abort,
pauses, weight updates with policy versions, and load telemetry. What an engine cannot do it says in its
`EngineCapabilities`; a call it does not support raises `UnsupportedError`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol


class EngineError(Exception):
    """Anything an engine refuses or fails at."""


class EngineFailedError(EngineError):
    """The engine is dead; nothing it was asked will be answered."""


class EngineBusyError(EngineError):
    """The engine's queue of waiting requests is full."""


class UnsupportedError(EngineError):
    """The engine lacks this capability."""


class WeightUpdateError(EngineError):
    """The weights could not be updated; the engine goes on with those it had."""


class RequestRefusedError(EngineError):
    """This request can never be served; another engine of the same model would refuse it too.

    Attributes:
        reason: A stable word: "no_tokens", "prompt_too_long", "token_out_of_vocabulary", "no_tokenizer",
            "non_finite_logits", "duplicate_request".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PauseMode(Enum):
    """What a pause does to requests that have begun; those that have not always wait for `resume`."""

    DRAIN = "drain"
    """They run to their end first."""
    ABORT = "abort"
    """They end now with the tokens they have."""
    KEEP = "keep"
    """They stop between two tokens, stay in memory and go on at `resume`."""


class UpdateMode(Enum):
    """What a weight update does to requests that have begun; those that have not run under the new weights."""

    DRAIN = "drain"
    """They finish under the old weights first."""
    ABORT = "abort"
    """They end now with the tokens they have."""
    KEEP = "keep"
    """The weights change between two tokens; their KV cache stays."""


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class LogProbsMode(Enum):
    """Of which distribution log-probabilities are."""

    SAMPLED = "sampled"
    """Of the one that tokens were drawn from: after temperature, top_k and top_p. Greedy: 0."""
    RAW = "raw"
    """Of the model's own output at temperature 1, over its whole vocabulary."""


MAX_STOP_TEXTS = 64
MAX_STOP_CHARACTERS = 1024
_SEED_END = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens.

    Attributes:
        max_new_tokens: The most new tokens, at least 1.
        temperature: 0 takes the most likely token; otherwise above 0.
        top_p: Nucleus mass in (0, 1].
        top_k: Keep the k most likely tokens; 0 keeps all.
        seed: Seed of this request's own random stream, below 2^64; None has the engine draw one.
        stop_token_ids: Generation ends after any of these; the stop token is part of the output.
        stop: Generation ends once the text of the new tokens contains any of these, compared as UTF-8. The token that
            completes it is the last one of the output.
        log_probs_mode: Of which distribution the log-probabilities are to be.

    Raises:
        ValueError: A value breaks its rule.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    log_probs_mode: LogProbsMode = LogProbsMode.SAMPLED

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}; it must be finite and at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 0")
        if self.seed is not None and not 0 <= self.seed < _SEED_END:
            raise ValueError(f"seed is {self.seed}; it must be at least 0 and below 2^64")
        if len(self.stop) > MAX_STOP_TEXTS:
            raise ValueError(f"stop has {len(self.stop)} texts; it must have at most {MAX_STOP_TEXTS}")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                raise ValueError(f"stop: a text has {len(text)} characters; it must have 1 to {MAX_STOP_CHARACTERS}")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request.

    Attributes:
        request_id: Unique among live requests, and of a fixed width: some engines abort by prefix.
        prompt_token_ids: At least one token.
        sampling: How to choose tokens.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens `begin` to `end - 1` were made by policy `version`."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What a request produced.

    Attributes:
        token_ids: New tokens.
        log_probs: Natural logarithm of each one's probability under the distribution that the request asked for.
        finish_reason: Why it ended; ABORT also when an update or a pause of the engine ended it.
        version_spans: Cover all tokens in order.
        seed: The seed that was used, given or drawn.
        cached_tokens: Prompt tokens whose KV was reused.
        cpu_s: CPU seconds of the engine's compute thread for this request, its share of batched work; 0 if unknown.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    seed: int
    cached_tokens: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights for an engine.

    Attributes:
        path: Directory with the weights, in the engine's own format.
        version: The policy version they are, 0 or more.
        mode: What becomes of running requests.
        timeout_s: The longest wait for a drain.
    """

    path: Path
    version: int
    mode: UpdateMode
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot between two steps of the engine.

    Attributes:
        running: Requests in the batch, paused ones included.
        waiting: Requests not begun.
        paused: Requests paused one by one, running or waiting.
        kv_tokens_used: KV cache tokens reserved by running requests.
        kv_tokens_total: KV cache tokens there are.
    """

    running: int
    waiting: int
    paused: int
    kv_tokens_used: int
    kv_tokens_total: int


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine lives. A paused engine is alive.

    Attributes:
        alive: Whether it can serve.
        paused: Whether `pause` is in force.
        reason: Why it is not alive; empty if it is.
    """

    alive: bool
    paused: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do.

    Attributes:
        pause_modes: Modes of `pause`.
        update_modes: Modes of `update_weights`.
        version_spans: Whether spans come from the engine itself, exact to the token.
        pause_request: Whether single requests can be paused.
        prefix_cache: Whether KV of earlier prompts is reused.
        batch_invariant: Whether equal requests give equal tokens whatever runs beside them.
        stop_texts: Whether `Sampling.stop` is supported, which takes a tokenizer.
    """

    pause_modes: frozenset[PauseMode]
    update_modes: frozenset[UpdateMode]
    version_spans: bool
    pause_request: bool
    prefix_cache: bool
    batch_invariant: bool
    stop_texts: bool


class EngineDriver(Protocol):
    """One engine. All methods are called from one event loop."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can do; constant."""

    @property
    def policy_version(self) -> int:
        """Version of the weights it serves now."""

    @property
    def load(self) -> EngineLoad:
        """The newest known load; never blocks."""

    @property
    def health(self) -> EngineHealth:
        """The newest known state; never blocks."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Runs one request to its end. When the awaiting task is cancelled the request is aborted.

        Raises:
            RequestRefusedError: It can never be served.
            EngineBusyError: The queue is full.
            EngineFailedError: The engine died before it finished.
        """

    async def abort(self, request_id: str) -> None:
        """Ends a request; its `generate` returns with the tokens so far. An unknown id is no error."""

    async def pause_request(self, request_id: str) -> None:
        """Keeps one request from progress without losing it. An unknown id is no error.

        Raises:
            UnsupportedError: The engine cannot.
        """

    async def resume_request(self, request_id: str) -> None:
        """Undoes `pause_request`."""

    async def pause(self, mode: PauseMode, timeout_s: float = 60.0) -> None:
        """Stops the engine; returns once it stands still. New requests wait for `resume`.

        Raises:
            UnsupportedError: The engine lacks the mode.
            TimeoutError: A drain took longer than `timeout_s`; the engine is not paused.
            EngineFailedError: The engine is dead.
        """

    async def resume(self) -> None:
        """Undoes `pause`; no error if it is not paused."""

    async def flush(self) -> None:
        """Forgets cached prefixes. Running requests keep their own KV."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Replaces the weights. Cached prefixes of the old ones are forgotten.

        Raises:
            UnsupportedError: The engine lacks the mode.
            WeightUpdateError: They cannot be used, or the drain timed out; the old weights stay.
            EngineFailedError: The engine is dead.
        """

    async def wait_failed(self) -> str:
        """Waits until the engine is dead, however long, and returns why. `close` is no failure."""

    async def close(self) -> None:
        """Aborts everything and releases the engine. May be called more than once."""
