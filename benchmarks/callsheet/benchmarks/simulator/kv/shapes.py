"""Shapes of trajectories that hold KV: their contexts, what they write, and how long their tools take.

`coding` and `deepsearch` are the simulator's workloads of these names, whose figures come from public traces. The
others have the contexts of `coding`. `terminal` has the tool times of 3,479 actions of mini-swe-agent in public
Terminal-Bench trials: half of them take 34 ms, a tenth 18.6 s and more, 7.4 % run into their time-out of 30 s. `wild`
has those that TraceLab published of 433,000 tool calls: half take 0.3 s, a tenth 13.6 s and more, a hundredth 216 s and
more. People's approvals are among these, so it is an upper bound.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from callsheet.benchmarks.simulator.calibration.gpu_mix import H800, engine_of
from callsheet.benchmarks.simulator.scenario import EngineType, Generation, Mode, Rollout
from callsheet.benchmarks.simulator.workloads import scenario

# The most a policy model of today serves at once; longer trajectories end there.
MOST_CONTEXT = 131_072
_WILD_TOOL_S = ((0.0, 0.01), (0.5, 0.3), (0.9, 13.6), (0.99, 216.0), (1.0, 600.0))
_TERMINAL_TOOL_S = ((0.0, 0.005), (0.5, 0.034), (0.75, 0.5), (0.9, 18.6), (0.926, 30.0), (1.0, 30.0))
_TOOL_S = {"terminal": _TERMINAL_TOOL_S, "wild": _WILD_TOOL_S}


@dataclass(frozen=True, slots=True)
class KvTurn:
    """A generation and the tool call after it."""

    generation: Generation
    tool_label: str
    tool_s: float
    tool_timeout_s: float


@dataclass(frozen=True, slots=True)
class KvRollout:
    """A trajectory as drawn ahead."""

    task: str
    turns: tuple[KvTurn, ...]


@dataclass(frozen=True, slots=True)
class KvScenario:
    """Everything that a run needs, the same for every policy.

    Attributes:
        first: Live from the start, each at some turn of its life, as in a run that has gone on for long.
        later: Take the places of those that end, in this order, the first again after the last.
        forgets_ended: Whether engines drop the contexts of trajectories that ended. Those of real servers go only when
            they are the least recently used.
    """

    engine: EngineType
    engines: int
    first: tuple[KvRollout, ...]
    later: tuple[KvRollout, ...]
    horizon_s: float
    forgets_ended: bool = True


SHAPES = ("coding", "terminal", "deepsearch", "wild")


def draw(shape: str, demand: float, engines: int, seed: int, *, horizon_s: float, prefill_scale: float) -> KvScenario:
    """Draws a scenario.

    Args:
        shape: One of `SHAPES`.
        demand: Tokens of live trajectories' contexts, by those that all KV caches hold.
        engines: Engines of one H800 each that serve Qwen3-8B, with rates from public figures.
        seed: Of everything drawn.
        horizon_s: Virtual seconds.
        prefill_scale: Times the engines' prefill rate.
    """
    random = Random(f"{shape} {seed}")
    rollouts = list(_rollouts(shape, seed, random))
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    mean_context = sum(turn.generation.prompt_tokens + turn.generation.output_tokens for turn in turns) / len(turns)
    engine = engine_of(H800, engines, mean_context)
    rate = prefill_scale * engine.prefill_tokens_per_s
    engine = replace(engine, prefill_tokens_per_s=rate, keeps_prefixes=True)
    live = max(1, round(demand * engines * engine.kv_tokens / mean_context))
    lengths = [len(rollout.turns) for rollout in rollouts]
    first = tuple(_from_some_turn(rollout, random) for rollout in random.choices(rollouts, lengths, k=live))
    return KvScenario(engine, engines, first, tuple(random.sample(rollouts, len(rollouts))), horizon_s)


def _from_some_turn(rollout: KvRollout, random: Random) -> KvRollout:
    return KvRollout(rollout.task, rollout.turns[random.randrange(len(rollout.turns)) :])


def _rollouts(shape: str, seed: int, random: Random) -> Iterator[KvRollout]:
    source = "coding" if shape in _TOOL_S else shape
    drawn = scenario(source, mode=Mode.ONESHOT, trajectories=400, seed=seed)
    for rollout in drawn.rollouts:
        turns = tuple(_turns(rollout, shape, random))
        if turns:
            yield KvRollout(rollout.task, turns)


def _turns(rollout: Rollout, shape: str, random: Random) -> Iterator[KvTurn]:
    known = 0
    for turn in rollout.turns:
        generation = turn.generation
        if generation.prompt_tokens + generation.output_tokens > MOST_CONTEXT:
            return
        works = turn.actions
        label = works[0].label if works else ""
        tool_s = max((work.alone_s() for work in works), default=0.0)
        timeout_s = max((work.timeout_s for work in works), default=math.inf)
        if shape in _TOOL_S:
            quantiles = _TOOL_S[shape]
            label, tool_s, timeout_s = "shell", _at_quantile(quantiles, random.random()), quantiles[-1][1]
        told = Generation(0.0, generation.prompt_tokens, generation.output_tokens, min(known, generation.prompt_tokens))
        known = generation.prompt_tokens + generation.output_tokens
        yield KvTurn(told, label, tool_s, timeout_s)


def _at_quantile(quantiles: Sequence[tuple[float, float]], share: float) -> float:
    """Between two quantiles the logarithm is uniform."""
    place = min(bisect_right([each for each, _ in quantiles], share), len(quantiles) - 1)
    (low, low_s), (high, high_s) = list(pairwise(quantiles))[place - 1]
    part = (share - low) / (high - low)
    return math.exp(math.log(low_s) + part * (math.log(high_s) - math.log(low_s)))
