"""Which inference engine serves a generation."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.benchmarks.simulator.policy import EngineLoad
from callsheet.benchmarks.simulator.scenario import Generation


def cheapest_engine(generation: Generation, engines: Sequence[EngineLoad]) -> int:
    """Index of the engine with the lowest price: its own seconds there, and the seconds it adds to those it is with.

    Args:
        generation: Its tokens.
        engines: What each engine tells of itself.
    """
    prices = [_price(generation, load) for load in engines]
    return prices.index(min(prices))


def _price(generation: Generation, load: EngineLoad) -> float:
    engine = load.engine
    batch = min(load.running + load.waiting + 1, engine.max_batch)
    prefill_s = max(generation.prompt_tokens - load.cached_tokens, 0) / engine.prefill_tokens_per_s
    decode_s = generation.output_tokens * (engine.step_s + batch * engine.step_per_sequence_s)
    added_s = prefill_s + generation.output_tokens * engine.step_per_sequence_s
    # Beyond the batch it waits for the rounds before it.
    rounds_ahead = (load.running + load.waiting) // engine.max_batch
    return prefill_s + decode_s * (1 + rounds_ahead) + added_s * (batch - 1)
