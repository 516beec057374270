"""The seam between the inference manager and an engine.

The shape follows what engines for reinforcement learning offer: token ids in and out, partial tokens after an abort,
weight updates with policy versions, and load telemetry. What an engine cannot do it says in its `EngineCapabilities`; a
call it does not support raises `UnsupportedError`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import anyio
from callsheet.managers.inference.engine_errors import (
    EngineBusyError,
    EngineError,
    EngineFailedError,
    NonFiniteError,
    RequestRefusedError,
    UnsupportedError,
    WeightUpdateError,
)
from callsheet.managers.inference.weights import UpdateMode, WeightSource, WeightUpdate
from callsheet.v1.names import MAX_STOP_CHARACTERS, MAX_STOP_TEXTS

# All of the seam can be imported from here.
__all__ = [
    "EngineBusyError",
    "EngineCapabilities",
    "EngineDriver",
    "EngineError",
    "EngineFailedError",
    "EngineHealth",
    "EngineLimits",
    "EngineLoad",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "LogProbsMode",
    "NonFiniteError",
    "OthersLoad",
    "RequestRefusedError",
    "Sampling",
    "UnsupportedError",
    "UpdateMode",
    "VersionSpan",
    "WeightUpdate",
    "WeightUpdateError",
]

_SEED_END = 1 << 64


class FinishReason(Enum):
    """Reason why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class LogProbsMode(Enum):
    """Distributions that log-probabilities can be of."""

    SAMPLED = "sampled"
    """The distribution that tokens were drawn from: after temperature, top_k and top_p. Greedy: 0."""
    RAW = "raw"
    """The model's own output at temperature 1, over its whole vocabulary."""


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
        ignore_eos: Whether the model's own end tokens do not end generation. Otherwise one that does is its last token.
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
    ignore_eos: bool = False

    def end_tokens(self, of_model: frozenset[int]) -> frozenset[int]:
        """Returns the tokens after which generation ends, of a model with these end tokens of its own."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | of_model

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
        kv_namespace: Only KV of requests with the same one is reused.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    kv_namespace: str = ""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens `begin` to `end - 1` were made by policy `version`."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of a request.

    Attributes:
        token_ids: New tokens.
        log_probs: Natural logarithm of each one's probability under the distribution that the request asked for; none
            where the engine cannot tell it for this sampling.
        finish_reason: Why it ended; ABORT also when an update of the engine ended it.
        version_spans: Cover all tokens in order.
        seed: The seed that was used, given or drawn.
        cached_tokens: Prompt tokens whose KV was reused.
        cpu_s: CPU seconds of the engine's compute thread for this request, its share of batched work; 0 if unknown.
        text: Text of the new tokens, special tokens left out; None where the engine has no tokenizer.
        waited_s: Seconds before it had a place in the engine's batch; 0 if the engine does not tell it.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    seed: int
    cached_tokens: int = 0
    cpu_s: float = 0.0
    text: str | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot between two steps of the engine.

    Attributes:
        running: Requests in the batch.
        waiting: Requests not begun.
        kv_tokens_used: KV cache tokens reserved by running requests.
        kv_tokens_total: KV cache tokens there are.
    """

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int


@dataclass(frozen=True, slots=True)
class OthersLoad:
    """Load of an engine that did not come through its driver.

    Attributes:
        sequences: Requests, running or waiting.
        kv_tokens: KV cache tokens that they hold.
    """

    sequences: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The most that an engine takes, as it tells itself; None where it does not.

    Attributes:
        sequences: Requests in the batch.
        kv_tokens: KV cache tokens.
        context_length: Tokens of one sequence, prompt and new ones together.
    """

    sequences: int | None = None
    kv_tokens: int | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Health of the engine. A paused engine is alive.

    Attributes:
        alive: Whether it can serve.
        paused: Whether it stands still: somebody has paused its server.
        reason: Why it is not alive; empty if it is.
    """

    alive: bool
    paused: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Abilities of an engine.

    Attributes:
        update_modes: Modes of `update_weights`.
        version_spans: Whether spans come from the engine itself, exact to the token.
        prefix_cache: Whether KV of earlier prompts is reused.
        batch_invariant: Whether equal requests give equal tokens whatever runs beside them.
        stop_texts: Whether `Sampling.stop` is supported, which takes a tokenizer.
        weight_sources: Where new weights may come from; none where they cannot be updated.
        log_probs_modes: Of which distributions it tells log-probabilities; none where it tells none.
        kv_namespaces: Whether `GenerateRequest.kv_namespace` is heeded.
        abort: Whether single requests can be ended with the tokens they have.
        seeds: Whether equal seeds, prompts and weights give equal tokens.
        log_prob_tolerance: By how much log-probabilities of equal weights and tokens may differ between two such
            engines, or between one and the trainer: kernels and batches round differently.
        gpus: GPUs that it computes on, as far as it tells.
    """

    update_modes: frozenset[UpdateMode]
    version_spans: bool
    prefix_cache: bool
    batch_invariant: bool
    stop_texts: bool
    weight_sources: frozenset[type[WeightSource]] = frozenset()
    log_probs_modes: frozenset[LogProbsMode] = frozenset(LogProbsMode)
    kv_namespaces: bool = False
    abort: bool = True
    seeds: bool = True
    log_prob_tolerance: float = 1e-3
    gpus: int = 0


class EngineDriver(ABC):
    """One engine. All methods are called from one event loop.

    A driver must have the abstract ones. All others stand for an engine that lacks the ability, or has nothing to tell.
    """

    @property
    @abstractmethod
    def capabilities(self) -> EngineCapabilities:
        """Abilities of the engine; constant."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """The newest known version of the weights it serves; never blocks."""

    @property
    @abstractmethod
    def load(self) -> EngineLoad:
        """The newest known load; never blocks."""

    @property
    @abstractmethod
    def health(self) -> EngineHealth:
        """The newest known state; never blocks."""

    @property
    def limits(self) -> EngineLimits:
        """The most it takes, as the engine tells; constant."""
        return EngineLimits()

    @property
    def others(self) -> OthersLoad:
        """Load of others on the engine, as far as it is known; never blocks."""
        return OthersLoad()

    @property
    def incarnation(self) -> str:
        """Changes whenever the engine may have lost its weights since, for instance by a restart of its server."""
        return ""

    def on_change(self, report: Callable[[], None]) -> None:
        """Takes the function to call, on the event loop, when health, version, incarnation or others' load change."""

    async def serve(self) -> None:
        """Watches the engine until it is cancelled; returns at once where there is nothing to watch."""

    async def read_policy_version(self) -> int:
        """Asks the engine itself which version it serves, and returns it.

        Raises:
            EngineFailedError: The engine is dead, or does not answer in time.
        """
        return self.policy_version

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Runs one request to its end. When the awaiting task is cancelled the request is aborted.

        Raises:
            RequestRefusedError: It can never be served.
            EngineBusyError: The queue is full.
            EngineFailedError: The engine died before it finished.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Ends a request; its `generate` returns with the tokens so far. An unknown id is no error."""

    async def update_weights(self, update: WeightUpdate) -> str:
        """Replaces the weights. Cached prefixes of the old ones are forgotten.

        Returns:
            What shows that the engine has the tensors, as a sentence; empty where nothing but its version does.

        Raises:
            UnsupportedError: The engine lacks the mode, or the kind of source.
            WeightUpdateError: They cannot be used, the drain timed out, or the engine has other tensors than came.
            EngineFailedError: The engine is dead.
        """
        raise UnsupportedError("this engine cannot change its weights")

    async def wait_failed(self) -> str:
        """Waits until the engine is dead for good, however long, and returns why. `close` is no failure.

        An engine that may come back, as a server that its manager is only attached to, is not dead for good.
        """
        await anyio.sleep_forever()
        return ""

    @abstractmethod
    async def close(self) -> None:
        """Aborts everything and releases the engine. May be called more than once."""
