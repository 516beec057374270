"""Which inference engine serves a generation, and how much it is expected to write."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.benchmarks.simulator.policy import EngineStatus, LiveRollout
from callsheet.benchmarks.simulator.scenario import Generation

# Tokens that a job's generations are expected to write before any has ended; counts as one that did.
FIRST_GUESS_TOKENS = 256.0


class OutputTokens:
    """How much the generations of a job write: the mean of those that have ended."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[float, int]] = {}
        self._running: dict[LiveRollout, int] = {}

    def expected(self, live: LiveRollout, generation: Generation) -> float:
        """Tokens that a trajectory's next generation is expected to write; its last one has ended by then."""
        self._learn(live)
        self._running[live] = generation.output_tokens
        written, count = self._written.get(live.rollout.job, (FIRST_GUESS_TOKENS, 1))
        return written / count

    def finished(self, live: LiveRollout) -> None:
        """A trajectory has no more generations; what a cancelled one was writing is not known."""
        if live.cancelled:
            self._running.pop(live, None)
        else:
            self._learn(live)

    def _learn(self, live: LiveRollout) -> None:
        tokens = self._running.pop(live, None)
        if tokens is not None:
            written, count = self._written.get(live.rollout.job, (FIRST_GUESS_TOKENS, 1))
            self._written[live.rollout.job] = (written + tokens, count + 1)


def cheapest_engine(prompt_tokens: int, output_tokens: float, engines: Sequence[EngineStatus]) -> int:
    """Index of the engine with the lowest price: its own seconds there, and the seconds it adds to those it is with.

    Args:
        prompt_tokens: Context of the generation.
        output_tokens: What it is expected to write.
        engines: What each engine tells of itself.
    """
    prices = [_price(prompt_tokens, output_tokens, load) for load in engines]
    return prices.index(min(prices))


def _price(prompt_tokens: int, output_tokens: float, load: EngineStatus) -> float:
    engine = load.engine
    batch = min(load.running + load.waiting + 1, engine.max_batch)
    prefill_s = max(prompt_tokens - load.cached_tokens, 0) / engine.prefill_tokens_per_s
    decode_s = output_tokens * (engine.step_s + batch * engine.step_per_sequence_s)
    added_s = prefill_s + output_tokens * engine.step_per_sequence_s
    # Beyond the batch it waits for the rounds before it.
    rounds_ahead = (load.running + load.waiting) // engine.max_batch
    return prefill_s + decode_s * (1 + rounds_ahead) + added_s * (batch - 1)
