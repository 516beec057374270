"""Continuous batching: requests join and leave between decode steps. No threads, no event loop.

A step admits waiting requests, first come, while the KV cache has room; prefills a bounded number of prompt tokens;
and decodes one token of every running sequence. A sequence gets room for its longest possible output at admission, so
it never has to be thrown out again.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from callsheet.managers.inference.driver import (
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    RequestRefusedError,
)
from callsheet.managers.inference.torch_engine.batch_runner import BatchRunner, DecodeRow
from callsheet.managers.inference.torch_engine.prefix_cache import PrefixCache, chunk_keys
from callsheet.managers.inference.torch_engine.sampling import choose_tokens
from callsheet.managers.inference.torch_engine.sequence import Sequence, StopTexts, TokenBytes
from callsheet.managers.models.requests import SequenceBounds, token_problem
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a batch.

    Attributes:
        max_running: The most sequences in the batch.
        prefill_chunk: Prompt tokens computed in one piece; the grain of prefix reuse.
        prefill_tokens_per_step: Prompt tokens after which a step goes on to decode.
        prefix_cache_tokens: Prompt tokens whose KV is kept for reuse; 0 keeps none.
    """

    max_running: int = 64
    prefill_chunk: int = 128
    prefill_tokens_per_step: int = 512
    prefix_cache_tokens: int = 8192

    def __post_init__(self) -> None:
        for name, least in (
            ("max_running", 1),
            ("prefill_chunk", 1),
            ("prefill_tokens_per_step", 1),
            ("prefix_cache_tokens", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's end, with the tag it was submitted with."""

    tag: object
    result: Generation | RequestRefusedError


def draw_seed() -> int:
    """Returns a seed from the system's randomness that also fits a signed 64-bit number, as many trainers have."""
    return secrets.randbits(63)


def check_request(request: GenerateRequest, bounds: SequenceBounds, *, stop_texts: bool = True) -> None:
    """Refuses a request that the model can never serve.

    Args:
        request: The request.
        bounds: Of the model.
        stop_texts: Whether the model's text is known.

    Raises:
        RequestRefusedError: The prompt is empty, has ids outside the vocabulary, or leaves no room for a new token;
            or it has stop texts where no text is known.
    """
    if request.sampling.stop and not stop_texts:
        raise RequestRefusedError("no_tokenizer", "stop: this engine has no tokenizer; give stop_token_ids instead")
    problem = token_problem(request.prompt_token_ids, bounds, new_tokens=1)
    if problem is not None:
        raise RequestRefusedError(problem.reason, f"prompt_token_ids: {problem.message}")


class Batcher:
    """The engine's state machine. Not thread-safe.

    Attributes:
        version: The policy version of the weights in force.
        admits: Whether waiting requests join; otherwise only those in the batch go on.
    """

    def __init__(
        self,
        runner: BatchRunner,
        limits: BatchLimits,
        version: int,
        *,
        token_bytes: TokenBytes | None = None,
        end_tokens: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.thread_time,
        new_seed: Callable[[], int] = draw_seed,
    ) -> None:
        """Starts empty.

        Args:
            runner: The model and its KV cache.
            limits: Bounds of the batch.
            version: Policy version of the weights.
            token_bytes: What a token adds to the text; None where that is not known, and no request has stop texts.
            end_tokens: The model's own tokens that end generation, unless a request ignores them.
            clock: Gives the CPU seconds that are charged to requests.
            new_seed: Gives the seeds of requests that have none.
        """
        self.version = version
        self.admits = True
        self._runner = runner
        self._limits = limits
        self._token_bytes = token_bytes
        self._end_tokens = end_tokens
        self._clock = clock
        self._new_seed = new_seed
        kept = limits.prefix_cache_tokens // limits.prefill_chunk if runner.keeps_prefixes else 0
        self._prefixes = PrefixCache(kept)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._finished: list[Finished] = []

    def prepare(self) -> None:
        """Adapts to the machine. Call it first, in the thread that will step."""
        self._runner.choose_tile()

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    def load(self) -> EngineLoad:
        """What the engine is doing."""
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_tokens_used=self._runner.extents.used,
            kv_tokens_total=self._runner.extents.capacity,
        )

    def submit(self, request: GenerateRequest, tag: object) -> None:
        """Queues a request that `check_request` accepts."""
        sampling = request.sampling
        room = self._runner.bounds.context_length - len(request.prompt_token_ids)
        seed = self._new_seed() if sampling.seed is None else sampling.seed
        watched = StopTexts(sampling.stop, self._token_bytes) if sampling.stop and self._token_bytes else None
        self._waiting.append(
            Sequence(
                request=request,
                tag=tag,
                limit=min(sampling.max_new_tokens, room),
                seed=seed,
                stream=random.Random(seed),
                chunk_keys=chunk_keys(request.prompt_token_ids, self._limits.prefill_chunk, request.kv_namespace),
                stop_texts=watched,
                token_bytes=self._token_bytes,
                end_tokens=sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else self._end_tokens),
            )
        )

    def abort(self, request_id: str) -> None:
        """Ends a request with the tokens it has; an unknown id is no error."""
        for sequence in (*self._running, *self._waiting):
            if sequence.request.request_id == request_id:
                self._finish(sequence, FinishReason.ABORT)

    def abort_running(self) -> None:
        """Ends all requests that have begun with the tokens they have."""
        for sequence in list(self._running):
            self._finish(sequence, FinishReason.ABORT)

    def abort_all(self) -> None:
        """Ends all requests with the tokens they have."""
        for sequence in [*self._running, *self._waiting]:
            self._finish(sequence, FinishReason.ABORT)

    def replace_weights(self, state: Mapping[str, Tensor], version: int) -> None:
        """Changes weights between two steps. Running sequences keep the KV that the old weights made."""
        self._runner.load_state(state)
        self.version = version
        self._prefixes.clear()
        for sequence in self._running:
            sequence.cacheable = False

    def can_step(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._finished or self._running) or (self.admits and self._admissible() is not None)

    def step(self) -> list[Finished]:
        """Does one step; returns what ended since the last one."""
        if self.admits:
            self._admit()
        self._prefill()
        self._decode()
        finished, self._finished = self._finished, []
        return finished

    def _admissible(self) -> Sequence | None:
        """The next waiting request, if there is a seat and KV cache for it; strictly first come, so none starves."""
        if len(self._running) >= self._limits.max_running:
            return None
        first = self._waiting[0] if self._waiting else None
        return first if first is not None and self._runner.extents.fits(first.most_tokens) else None

    def _admit(self) -> None:
        while (sequence := self._admissible()) is not None:
            sequence.place = self._runner.extents.allocate(sequence.most_tokens)
            sequence.admitted_at = time.monotonic()
            self._waiting.popleft()
            self._running.append(sequence)
            self._reuse_prefix(sequence)

    def _reuse_prefix(self, sequence: Sequence) -> None:
        """Copies the KV of known leading chunks; the last prompt token is always computed, as its logits are needed."""
        assert sequence.place is not None
        chunk = self._limits.prefill_chunk
        usable = (sequence.prompt_length - 1) // chunk
        for values in self._prefixes.find(sequence.chunk_keys[:usable]):
            self._runner.write_kv(sequence.place, sequence.prefilled, values)
            sequence.prefilled += chunk
        sequence.cached_tokens = sequence.prefilled

    def _prefill(self) -> None:
        budget = self._limits.prefill_tokens_per_step
        for sequence in list(self._running):
            while budget > 0 and sequence.prefilled < sequence.prompt_length:
                budget -= self._prefill_chunk(sequence)

    def _prefill_chunk(self, sequence: Sequence) -> int:
        """Computes the next chunk of a prompt and, after the last one, the first token; returns the chunk's tokens."""
        assert sequence.place is not None
        started = self._clock()
        begin = sequence.prefilled
        end = sequence.prompt_length if self._runner.whole_prompts else begin + self._limits.prefill_chunk
        chunk = sequence.request.prompt_token_ids[begin:end]
        logits = self._runner.prefill(chunk, begin, sequence.place)
        sequence.prefilled = end = begin + len(chunk)
        if sequence.cacheable and self._runner.keeps_prefixes and len(chunk) == self._limits.prefill_chunk:
            key = sequence.chunk_keys[begin // self._limits.prefill_chunk]
            self._prefixes.put(key, self._runner.read_kv(sequence.place, begin, end))
        chosen = _choose([sequence], logits) if end == sequence.prompt_length else ([], [])
        sequence.cpu_s += self._clock() - started
        self._take([sequence], *chosen)
        return len(chunk)

    def _decode(self) -> None:
        ready = [sequence for sequence in self._running if sequence.decoding]
        for begin in range(0, len(ready), self._runner.tile_rows):
            tile = ready[begin : begin + self._runner.tile_rows]
            started = self._clock()
            chosen = _choose(tile, self._runner.decode([_decode_row(sequence) for sequence in tile]))
            share = (self._clock() - started) / len(tile)
            for sequence in tile:
                sequence.cpu_s += share
            self._take(tile, *chosen)

    def _take(self, sequences: list[Sequence], tokens: list[int], log_probs: list[float]) -> None:
        """Gives each sequence its token, if there is one, and ends those that are done."""
        for sequence, token, log_prob in zip(sequences, tokens, log_probs, strict=False):
            if not math.isfinite(log_prob):
                self._finish(sequence, None)
                continue
            sequence.append(token, log_prob, self.version)
            if (reason := sequence.finish_reason()) is not None:
                self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Takes a sequence out; no reason means that its logits were not finite."""
        if sequence.place is None:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._runner.release(sequence.place)
        if reason is None:
            message = f"policy version {self.version} gave logits that are not finite"
            self._finished.append(Finished(sequence.tag, RequestRefusedError("non_finite_logits", message)))
        else:
            self._finished.append(Finished(sequence.tag, sequence.generation(reason)))


def _decode_row(sequence: Sequence) -> DecodeRow:
    assert sequence.place is not None
    return DecodeRow(sequence.token_ids[-1], sequence.next_position, sequence.place)


def _choose(sequences: list[Sequence], logits: Tensor) -> tuple[list[int], list[float]]:
    samplings = [sequence.request.sampling for sequence in sequences]
    return choose_tokens(logits, samplings, [sequence.stream.random() for sequence in sequences])
