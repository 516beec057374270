"""Times of actions and trajectories with the machines to themselves, and the load of a scenario."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.benchmarks.simulator.scenario import Rollout, Scenario, Work


def action_s(work: Work) -> float:
    """An action's shortest execution time over all attempts: at its best width, or until its timeout if that is less.

    An action that fails and is tried again may be over sooner if it is narrow and its first attempt times out.
    """
    finishes_s = (work.fails + 1) * work.alone_s(work.max_width)
    return min(finishes_s, work.timeout_s) if work.alone_s() > work.timeout_s else finishes_s


def trajectory_s(rollout: Rollout) -> float:
    """A trajectory's life without any waiting."""
    reset_s = action_s(rollout.reset) if rollout.reset is not None else 0.0
    turns_s = sum(max(map(action_s, turn.actions), default=0.0) for turn in rollout.turns)
    rewards_s = max(map(action_s, rollout.rewards), default=0.0)
    return reset_s + generations_s(rollout) + turns_s + rewards_s


def generations_s(rollout: Rollout) -> float:
    """A trajectory's generations, as drawn."""
    return sum(turn.generation.seconds for turn in rollout.turns)


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
    life = sum(trajectory_s(rollout) for rollout in rollouts) / count
    between = sum(generations_s(rollout) for rollout in rollouts) / count
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
