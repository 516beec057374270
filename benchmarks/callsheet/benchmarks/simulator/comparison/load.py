"""How loaded a scenario is: the ratio of the work its trajectories bring to what its machines can do."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.benchmarks.simulator.scenario import Generation, Scenario


@dataclass(frozen=True, slots=True)
class Load:
    """rho = N * S / ((S + Z) * K), of the resource with the greatest rho.

    Attributes:
        rho: The ratio; above 1 the closed loop is saturated.
        resource: "cpu" or "gpu".
        live: N, trajectories at once.
        work_s: S, mean core-seconds (or GPU-seconds) of an external action.
        between_s: Z, mean seconds between the actions of a trajectory.
        units: K, cores (or GPUs).
    """

    rho: float
    resource: str
    live: int
    work_s: float
    between_s: float
    units: int


def load_of(scenario: Scenario) -> Load:
    """The load of a scenario's first live trajectories; see `Load`."""
    cores = sum(nodes.count * nodes.cores for nodes in scenario.cluster.cpu)
    gpus = sum(nodes.count * nodes.gpus for nodes in scenario.cluster.gpu)
    gpus_of = {model.name: model.gpus for model in scenario.cluster.models}
    works = [work for rollout in scenario.rollouts for work in rollout.works()]
    count = max(len(works), 1)
    between = sum(_generation_s(scenario, turn.generation) for each in scenario.rollouts for turn in each.turns) / count
    cpu_s = sum(work.cpu_s for work in works) / count
    gpu_s = sum(work.service_s * gpus_of.get(work.service, 0) for work in works) / count
    loads = [
        Load(
            scenario.live * work / ((work + between) * units) if work else 0.0,
            name,
            scenario.live,
            work,
            between,
            units,
        )
        for name, work, units in (("cpu", cpu_s, cores), ("gpu", gpu_s, gpus))
        if units
    ]
    return max(loads, key=lambda load: load.rho, default=Load(0.0, "cpu", scenario.live, cpu_s, between, 0))


def _generation_s(scenario: Scenario, generation: Generation) -> float:
    """What a generation takes by itself; on engines, on the mean engine with nothing cached and nobody beside it."""
    engines = scenario.cluster.engines
    if not engines:
        return generation.seconds
    count = sum(engine.count for engine in engines)
    decode = sum(engine.count * (engine.step_s + engine.step_per_sequence_s) for engine in engines) / count
    prefill = sum(engine.count / engine.prefill_tokens_per_s for engine in engines) / count
    return generation.prompt_tokens * prefill + generation.output_tokens * decode
