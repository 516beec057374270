"""How loaded a scenario is: the ratio of the work its trajectories bring to what its machines can do."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.benchmarks.simulator.best_case import generations_s, trajectory_s
from callsheet.benchmarks.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Load:
    """rho = N * S / ((A + Z) * K), of the resource with the greatest rho.

    Attributes:
        rho: The ratio; above 1 the closed loop is saturated.
        resource: "cpu" or "gpu".
        live: N, trajectories at once.
        work_s: S, mean core-seconds (or GPU-seconds) of an external action.
        action_s: A, mean seconds of an external action with the machines to itself, its waiting for I/O included.
            Actions that run at one time count as the longest of them.
        between_s: Z, mean seconds between the actions of a trajectory.
        units: K, cores (or GPUs).
    """

    rho: float
    resource: str
    live: int
    work_s: float
    action_s: float
    between_s: float
    units: int


def load_of(scenario: Scenario) -> Load:
    """The load of a scenario's first live trajectories; see `Load`."""
    cluster, rollouts, live = scenario.cluster, scenario.rollouts, scenario.live
    gpus_of = {model.name: model.gpus for model in cluster.models}
    works = [work for rollout in rollouts for work in rollout.works()]
    count = max(len(works), 1)
    life = sum(trajectory_s(rollout, cluster.engines) for rollout in rollouts) / count
    between = sum(generations_s(rollout, cluster.engines) for rollout in rollouts) / count
    cpu_s = sum(work.cpu_s for work in works) / count
    gpu_s = sum(work.service_s * gpus_of.get(work.service, 0) for work in works) / count
    cores = sum(nodes.count * nodes.cores for nodes in cluster.cpu)
    gpus = sum(nodes.count * nodes.gpus for nodes in cluster.gpu)
    loads = [
        Load(live * work / (life * units) if work else 0.0, name, live, work, life - between, between, units)
        for name, work, units in (("cpu", cpu_s, cores), ("gpu", gpu_s, gpus))
        if units
    ]
    return max(loads, key=lambda load: load.rho, default=Load(0.0, "cpu", live, cpu_s, life - between, between, cores))
