"""An engine with room for five trajectories, as `make bench-kv-sglang` measures: often idle, and soon full.

Trajectories are those of that benchmark. Rates are those of a real SGLang with one thread of a CPU. Contexts of
trajectories that ended stay in its cache like any other, since no server is told of their ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from callsheet.benchmarks.kv.settings import KvBenchSettings
from callsheet.benchmarks.kv.trajectories import DrawnTrajectory, trajectories_of
from callsheet.benchmarks.simulator.kv.shapes import KvRollout, KvScenario, KvTurn
from callsheet.benchmarks.simulator.scenario import EngineType, Generation

_KV_TOKENS = 6_144
_LATER = 400
# No tool call follows the last generation.
_AT_ONCE_S = 1e-3


def draw_small(demand: float, seed: int, *, horizon_s: float, slower: float = 1.0) -> KvScenario:
    """Draws a scenario of one engine.

    Args:
        demand: Tokens of live trajectories' contexts, by those that the KV cache holds.
        seed: Of everything drawn.
        horizon_s: Virtual seconds.
        slower: How much longer the engine takes for everything, as on a machine that others load.
    """
    settings = KvBenchSettings(seed=seed)
    live = settings.live(demand, _KV_TOKENS)
    places = [trajectories_of(settings, place) for place in range(live)]
    first = tuple(_rollout(next(place), settings.tokens) for place in places)
    later = tuple(_rollout(next(places[number % live]), settings.tokens) for number in range(_LATER))
    engine = EngineType(
        name="small",
        count=1,
        gpus=0,
        prefill_tokens_per_s=1_400.0 / slower,
        step_s=0.012 * slower,
        step_per_sequence_s=0.004 * slower,
        max_batch=17,
        kv_tokens=_KV_TOKENS,
    )
    return KvScenario(engine, 1, first, later, horizon_s, forgets_ended=False)


def _rollout(drawn: DrawnTrajectory, tokens: int) -> KvRollout:
    return KvRollout("small", tuple(_turns(drawn, tokens)))


def _turns(drawn: DrawnTrajectory, tokens: int) -> Iterator[KvTurn]:
    prompt, known = len(drawn.prompt), 0
    for turn in drawn.turns:
        yield KvTurn(Generation(0.0, prompt, tokens, known), "tool", turn.tool_s, math.inf)
        known = prompt + tokens
        prompt = known + len(turn.observed)
    yield KvTurn(Generation(0.0, prompt, tokens, known), "tool", _AT_ONCE_S, math.inf)
