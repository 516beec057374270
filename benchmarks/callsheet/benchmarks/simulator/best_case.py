"""What actions and trajectories take at best, what they need of each resource, and how loaded that makes a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from callsheet.benchmarks.simulator.scenario import Cluster, Model, Quota, Rollout, Scenario, Work


def may_time_out(work: Work) -> bool:
    """Whether a timeout ends an action at its least width, if not at its best."""
    return work.alone_s() > work.timeout_s


def attempts(work: Work) -> int:
    """The fewest times that an action runs: a timeout is final, other failures are tried again."""
    return 1 if may_time_out(work) else work.fails + 1


def action_s(work: Work) -> float:
    """An action's shortest execution time over all attempts: at its best width, or until its timeout if that is less.

    An action that fails and is tried again may be over sooner if it is narrow and its first attempt times out.
    """
    finishes_s = (work.fails + 1) * work.alone_s(work.max_width)
    return min(finishes_s, work.timeout_s) if may_time_out(work) else finishes_s


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
class ServiceDemand:
    """What trajectories need of one resource.

    Attributes:
        seconds: For how long a trajectory keeps the whole resource busy.
        saved_up_s: What a quota has saved up when a run begins, in seconds of its rate.
    """

    seconds: Callable[[Rollout], float]
    saved_up_s: float = 0.0


def demands(cluster: Cluster) -> list[ServiceDemand]:
    """The demand for every resource that a cluster has: cores, GPUs, quotas."""
    cores = sum(nodes.count * nodes.cores for nodes in cluster.cpu)
    gpus = sum(nodes.count * nodes.gpus for nodes in cluster.gpu)
    found = []
    if cores:
        found.append(ServiceDemand(partial(_over_works, lambda work: _cpu_s(work) / cores)))
    if gpus:
        models = {model.name: model for model in cluster.models}
        found.append(ServiceDemand(partial(_over_works, lambda work: _gpu_s(work, models) / gpus)))
    for quota in cluster.quotas:
        found.extend(_quota_demands(quota))
    return found


def _over_works(seconds: Callable[[Work], float], rollout: Rollout) -> float:
    return sum(map(seconds, rollout.works()))


def _cpu_s(work: Work) -> float:
    """CPU seconds; a command that its timeout will end has used least if it was narrow."""
    if not work.runs_on_cpu:
        return 0.0
    return attempts(work) * min(work.cpu_s, max(0.0, work.timeout_s - work.service_s) * work.use)


def _gpu_s(work: Work, models: dict[str, Model]) -> float:
    """GPU seconds; calls that share an instance share its GPUs."""
    if not work.service:
        return 0.0
    return action_s(work) * models[work.service].gpus / models[work.service].slots


def _quota_demands(quota: Quota) -> list[ServiceDemand]:
    def calls_s(work: Work) -> float:
        return attempts(work) / quota.per_second if work.quota == quota.name else 0.0

    def tokens_s(work: Work) -> float:
        return attempts(work) * work.tokens * 60.0 / quota.tokens_per_minute if work.quota == quota.name else 0.0

    def service_s(work: Work) -> float:
        return action_s(work) / quota.concurrency if work.quota == quota.name else 0.0

    return [
        ServiceDemand(partial(_over_works, calls_s), quota.burst / quota.per_second),
        ServiceDemand(partial(_over_works, tokens_s), 60.0),
        ServiceDemand(partial(_over_works, service_s)),
    ]


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
