"""An inference engine: one batch of sequences, its KV cache, and a line for what does not fit."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from math import inf

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.policy import EngineStatus
from callsheet.benchmarks.simulator.scenario import EngineType, Generation

_ROUNDING = 1e-6  # tokens


class EngineSequence:
    """A generation on an engine.

    Attributes:
        owner: The trajectory whose context it extends; it has one sequence at a time.
        decoded: Nothing is left to do but to tell.
        over: It was told, or aborted.
    """

    __slots__ = ("decoded", "done", "generation", "over", "owner")

    def __init__(self, owner: Hashable, generation: Generation, done: Callable[[], None]) -> None:
        self.owner = owner
        self.generation = generation
        self.done = done
        self.decoded = False
        self.over = False

    @property
    def kv_tokens(self) -> int:
        """What it holds of the KV cache while it runs; it is set aside at once, so that it can always finish."""
        return self.generation.prompt_tokens + self.generation.output_tokens


class Engine:
    """Sequences of a batch decode in step: each gets the same tokens a second.

    Time is counted in tokens decoded by a sequence, where every end is fixed, so that a change costs O(log n). A
    prefill stops decoding for as long as it takes. Prefixes of trajectories that do not run stay in what is left of the
    KV cache. The least recently used give way, from their ends and by as much as is needed, as the leaves of a radix
    tree do.
    """

    def __init__(self, kind: EngineType, events: EventQueue) -> None:
        self.kind = kind
        self._events = events
        self._running: dict[Hashable, EngineSequence] = {}
        self._waiting: deque[EngineSequence] = deque()
        self._kv_tokens = 0
        self._cached: OrderedDict[Hashable, int] = OrderedDict()
        self._cached_tokens = 0
        self._decoded = 0.0  # tokens by each sequence that was there all the time
        self._decodes_from = 0.0  # when `_decoded` begins to grow: later than now while a prefill goes on
        self._ends: list[tuple[float, int, EngineSequence]] = []
        self._sequence = 0
        self._wakes_at = inf

    def load(self, owner: Hashable) -> EngineStatus:
        """What the engine tells, to one who asks for that trajectory."""
        return EngineStatus(
            self.kind,
            len(self._running),
            len(self._waiting),
            self._kv_tokens,
            self._cached.get(owner, 0),
        )

    def begin(self, sequence: EngineSequence) -> None:
        """Lets a sequence run, or puts it in line."""
        self._advance()
        self._waiting.append(sequence)
        self._admit()

    def abort(self, sequence: EngineSequence) -> None:
        """Takes a sequence out."""
        self._advance()
        sequence.over = True
        if sequence.decoded:
            return
        if self._running.get(sequence.owner) is sequence:
            self._remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._admit()

    def forget(self, owner: Hashable) -> None:
        """Drops what is cached of a trajectory."""
        self._cached_tokens -= self._cached.pop(owner, 0)

    def _rate(self) -> float:
        """Tokens a second for each sequence."""
        return 1.0 / (self.kind.step_s + len(self._running) * self.kind.step_per_sequence_s)

    def _advance(self) -> None:
        now = self._events.now
        if now > self._decodes_from:
            if self._running:
                self._decoded += (now - self._decodes_from) * self._rate()
            self._decodes_from = now

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            self._run(self._waiting.popleft())
        self._wake()

    def _fits(self, sequence: EngineSequence) -> bool:
        if not self._running:
            return True
        return len(self._running) < self.kind.max_batch and self._kv_tokens + sequence.kv_tokens <= self.kind.kv_tokens

    def _run(self, sequence: EngineSequence) -> None:
        cached = self._cached.pop(sequence.owner, 0)
        self._cached_tokens -= cached
        self._kv_tokens += sequence.kv_tokens
        self._evict(self._kv_tokens + self._cached_tokens - self.kind.kv_tokens)
        to_prefill = max(0, sequence.generation.prompt_tokens - cached)
        self._decodes_from = max(self._decodes_from, self._events.now) + to_prefill / self.kind.prefill_tokens_per_s
        self._running[sequence.owner] = sequence
        self._sequence += 1
        end = self._decoded + sequence.generation.output_tokens
        heapq.heappush(self._ends, (end, self._sequence, sequence))

    def _evict(self, tokens: int) -> None:
        while tokens > 0 and self._cached:
            owner, cached = self._cached.popitem(last=False)
            given = min(cached, tokens)
            self._cached_tokens -= given
            tokens -= given
            if given < cached:
                self._cached[owner] = cached - given
                self._cached.move_to_end(owner, last=False)

    def _remove(self, sequence: EngineSequence) -> None:
        del self._running[sequence.owner]
        self._kv_tokens -= sequence.kv_tokens

    def _wake(self) -> None:
        ends = self._ends
        while ends and ends[0][2].over:
            heapq.heappop(ends)
        if not ends:
            return
        at = self._decodes_from + (ends[0][0] - self._decoded) / self._rate()
        # A wake that comes too early looks again; only one that would come too late is replaced.
        if at < self._wakes_at:
            self._wakes_at = at
            self._events.at(at, self._woken, at)

    def _woken(self, at: float) -> None:
        if at != self._wakes_at:
            return
        self._wakes_at = inf
        self._advance()
        ends = self._ends
        while ends and (ends[0][2].over or ends[0][0] <= self._decoded + _ROUNDING):
            sequence = heapq.heappop(ends)[2]
            if not sequence.over:
                self._finish(sequence)
        self._admit()

    def _finish(self, sequence: EngineSequence) -> None:
        self._remove(sequence)
        room = self.kind.kv_tokens - self._kv_tokens - self._cached_tokens
        if self.kind.keeps_prefixes and sequence.kv_tokens <= room:
            self._cached[sequence.owner] = sequence.kv_tokens
            self._cached_tokens += sequence.kv_tokens
        sequence.decoded = True
        self._events.at(self._events.now, self._tell, sequence)

    def _tell(self, sequence: EngineSequence) -> None:
        if not sequence.over:
            sequence.over = True
            sequence.done()
