"""RollArt's mix of GPU classes (arXiv 2512.22560): fleets of equal cost, with one class of GPU and with two.

An engine is one GPU. Its rates follow from the published figures of its class: a prefill is bound by arithmetic, a step
of decoding by reading the weights once and every sequence's cache, and by arithmetic for every sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from random import Random

from callsheet.benchmarks.simulator.calibration.table import Experiment, FittedParameter, bisect, fitted_row, row
from callsheet.benchmarks.simulator.policies.callsheet import CALLSHEET
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING
from callsheet.benchmarks.simulator.policy import PolicyFactory
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    EngineType,
    Generation,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
)
from callsheet.benchmarks.simulator.simulation import simulate

_SOURCE = "RollArt, arXiv 2512.22560"
_SEED = 1
# RollArt's batch of 512 by the cost of its fleets, 206 H20.
_LIVE_BY_COST = 2.5
_HORIZON_S = 900.0
# More than can begin in the horizon.
_MOST_TRAJECTORIES = 6_000


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A class of GPUs; figures as RollArt gives them. Cost in units of an H20."""

    name: str
    flops: float
    bytes_per_s: float
    memory_bytes: float
    cost: float


H800 = GpuClass("H800", 989.5e12, 3.35e12, 80e9, 2.85)
H20 = GpuClass("H20", 148e12, 4.0e12, 96e9, 1.0)
Fleet = tuple[tuple[GpuClass, int], ...]

# Qwen3-8B, from its public configuration: parameters, and keys and values of a token (36 layers, 8 heads of 128), two
# bytes each.
_PARAMETERS = 8.2e9
_WEIGHT_BYTES = 2.0 * _PARAMETERS
_TOKEN_BYTES = 2.0 * 36 * 8 * 128 * 2.0
# Assumptions: parts of the published peaks that serving reaches, memory left for weights and cache, a mean context.
_OF_FLOPS = 0.5
_OF_BANDWIDTH = 0.8
_OF_MEMORY = 0.9
_CONTEXT_TOKENS = 8_000
_MAX_BATCH = 256  # beyond what the batch of RollArt brings to any engine


def engine_of(gpu: GpuClass, number: int) -> EngineType:
    """Engines of one GPU each, with the rates that follow from the class's figures, for sequences of that length."""
    flops, bandwidth = _OF_FLOPS * gpu.flops, _OF_BANDWIDTH * gpu.bytes_per_s
    return EngineType(
        name=gpu.name,
        count=number,
        gpus=1,
        prefill_tokens_per_s=flops / (2.0 * _PARAMETERS),
        step_s=_WEIGHT_BYTES / bandwidth,
        step_per_sequence_s=_CONTEXT_TOKENS * _TOKEN_BYTES / bandwidth + 2.0 * _PARAMETERS / flops,
        max_batch=_MAX_BATCH,
        kv_tokens=int((_OF_MEMORY * gpu.memory_bytes - _WEIGHT_BYTES) / _TOKEN_BYTES),
        keeps_prefixes=False,
    )


Draw = Callable[[Random, float], tuple[Generation, ...]]


def _many_turns(random: Random, observation_tokens: float) -> tuple[Generation, ...]:
    """FrozenLake: 20 to 100 turns of a few tokens (ROLL's cap is 128), each after an observation to prefill."""
    generations, context = [], 1_000.0
    for _ in range(random.randint(20, 100)):
        output = min(int(random.lognormvariate(3.7, 0.5)) + 1, 128)
        generations.append(Generation(0.0, int(context), output))
        context += observation_tokens + output
    return tuple(generations)


def _few_turns(random: Random, _: float) -> tuple[Generation, ...]:
    """GEM-math: fewer than five turns; their length of 1,600 tokens at the median is an assumption."""
    generations, context = [], 1_000
    for _turn in range(random.choice((1, 2, 3, 4))):
        output = min(int(random.lognormvariate(7.4, 0.8)) + 1, 8_192)
        generations.append(Generation(0.0, context, output))
        context += 100 + output
    return tuple(generations)


_DRAWS: dict[str, Draw] = {"frozenlake": _many_turns, "gem-math": _few_turns}


def gpu_mix() -> Experiment:
    """Prefill-heavy and decode-heavy tasks, on GPUs rich in arithmetic, rich in bandwidth, and on both."""
    published = 0.53
    observation = bisect(lambda tokens: _time_by_time("frozenlake", tokens), published, 20.0, 200.0, steps=6)
    mixed = _rate(_MIXED, observation, CALLSHEET)
    spread = mixed / _rate(_MIXED, observation, OS_SHARING)
    of_compute, of_bandwidth = (
        mixed / max(_rate(fleet, observation, policy) for policy in (CALLSHEET, OS_SHARING))
        for fleet in (_ONLY_H800, _ONLY_H20)
    )
    return Experiment(
        name="two classes of GPU: rates of trajectories on fleets of equal cost, an eighth of the published sizes",
        source=_SOURCE,
        assumptions=(
            "Qwen3-8B at 50% of peak arithmetic and 80% of peak bandwidth; half of the trajectories of either task; "
            "each turn prefills its whole context; homogeneous fleets at the better of two ways to choose an engine; "
            f"callsheet's choice on the mixed fleet does {spread:.2f} times what the fewest requests do"
        ),
        fitted=(FittedParameter("observation_tokens", observation, "tokens a turn", "FrozenLake"),),
        rows=(
            fitted_row(
                "FrozenLake: time on 2 H800 by that on 6 H20", published, _time_by_time("frozenlake", observation)
            ),
            row(
                "GEM-math: time on 6 H20 by that on 2 H800", (0.49, 0.79), 1.0 / _time_by_time("gem-math", observation)
            ),
            row("64 H800 and 24 H20 against 72 H800", (1.12, 1.37), of_compute),
            row("64 H800 and 24 H20 against 208 H20", (1.30, 1.68), of_bandwidth),
        ),
    )


_MIXED: Fleet = ((H800, 8), (H20, 3))
_ONLY_H800: Fleet = ((H800, 9),)
_ONLY_H20: Fleet = ((H20, 26),)


@cache
def _time_by_time(task: str, observation_tokens: float) -> float:
    """Time of a task on two H800 by that on six H20; turns are counted, as few trajectories end."""
    on_h20, on_h800 = (
        simulate(scenario_of(fleet, (task,), observation_tokens, _HORIZON_S), CALLSHEET).turns_per_hour
        for fleet in (((H20, 6),), ((H800, 2),))
    )
    return on_h20 / on_h800


@cache
def _rate(fleet: Fleet, observation_tokens: float, policy: PolicyFactory) -> float:
    """Trajectories per hour, half of either task."""
    return simulate(scenario_of(fleet, tuple(_DRAWS), observation_tokens, _HORIZON_S), policy).trajectories_per_hour


def scenario_of(fleet: Fleet, tasks: Sequence[str], observation_tokens: float, horizon_s: float) -> Scenario:
    """Sustained rollouts of the tasks, trajectory by trajectory in turn, on a fleet."""
    return Scenario(
        workload="gpu mix",
        mode=Mode.SUSTAINED,
        seed=_SEED,
        cluster=Cluster(engines=tuple(engine_of(gpu, number) for gpu, number in fleet)),
        jobs=tuple(ScenarioJob(task) for task in tasks),
        rollouts=tuple(islice(_rollouts(tasks, observation_tokens), _MOST_TRAJECTORIES)),
        live=round(_LIVE_BY_COST * sum(gpu.cost * number for gpu, number in fleet)),
        horizon_s=horizon_s,
    )


def _rollouts(tasks: Sequence[str], observation_tokens: float) -> Iterator[Rollout]:
    random = Random(f"{_SEED}/gpu mix")
    for number in count():
        task = tasks[number % len(tasks)]
        turns = tuple(Turn(generation, ()) for generation in _DRAWS[task](random, observation_tokens))
        yield Rollout(f"{number}", task, f"{number}", task, turns=turns)
