"""Which inference engine serves a generation, and how much it is expected to write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from callsheet.benchmarks.simulator.policy import EngineStatus, LiveRollout
from callsheet.benchmarks.simulator.scenario import Generation
from callsheet.scheduler.planner.engines.generation_prices import EngineLoads, generation_prices

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
    kinds = [each.engine for each in engines]
    rates = [(each.prefill_tokens_per_s, each.step_s, each.step_per_sequence_s) for each in kinds]
    prefill, step_s, step_per_sequence_s = np.array(rates, np.float64).T
    sequences = np.array([each.running + each.waiting for each in engines], np.int64)
    max_batch = np.array([each.max_batch for each in kinds], np.int64)
    cached = np.array([each.cached_tokens for each in engines], np.int64)
    loads = EngineLoads(prefill, step_s, step_per_sequence_s, sequences, max_batch, cached)
    return int(np.argmin(generation_prices(prompt_tokens, output_tokens, loads)))
