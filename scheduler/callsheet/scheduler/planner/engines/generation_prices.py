"""The price of a generation on each engine: its own seconds there, and those it adds to the sequences beside it.

An engine prefills a prompt first, during which nothing is decoded. All sequences of its batch then decode in step. So
prompts that are not cached drift to engines that prefill fast, and long answers to those that decode fast. No
generation goes to a crowded engine if the crowd costs more than a cached prefix saves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers


class EngineRates(NamedTuple):
    """How fast an engine is; decoding a token of a batch of b takes `step_s + b * step_per_sequence_s`."""

    prefill_tokens_per_s: float
    step_s: float
    step_per_sequence_s: float


class EngineLoads(NamedTuple):
    """Some engines as one generation finds them; all arrays have shape (engines,).

    Attributes:
        prefill_tokens_per_s: See `EngineRates`.
        step_s: Likewise.
        step_per_sequence_s: Likewise.
        sequences: Those that run and wait there now.
        max_batch: The most that decode at once; others wait for them.
        cached_tokens: Tokens of the prompt that are expected to be found in the KV cache.
    """

    prefill_tokens_per_s: Floats
    step_s: Floats
    step_per_sequence_s: Floats
    sequences: Integers
    max_batch: Integers
    cached_tokens: Integers


def generation_prices(prompt_tokens: int, output_tokens: float, engines: EngineLoads) -> Floats:
    """Seconds that a generation costs on each engine, shape (engines,).

    Args:
        prompt_tokens: Its prompt.
        output_tokens: What it is expected to write.
        engines: What it finds.
    """
    batch = np.minimum(engines.sequences + 1, engines.max_batch)
    prefill_s = np.maximum(prompt_tokens - engines.cached_tokens, 0) / engines.prefill_tokens_per_s
    decode_s = output_tokens * (engines.step_s + batch * engines.step_per_sequence_s)
    added_s = prefill_s + output_tokens * engines.step_per_sequence_s
    # Beyond the batch it waits for the rounds before it.
    rounds_ahead = engines.sequences // engines.max_batch
    prices: Floats = prefill_s + decode_s * (1 + rounds_ahead) + added_s * (batch - 1)
    return prices
