"""From what a scenario holds to what clients would have asked the core for, and managers registered with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from callsheet.benchmarks.peers import joining
from callsheet.benchmarks.simulator.quota_books import CALLS, TOKENS, quotas_of
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    GpuNodes,
    Model,
    Quota,
    Rollout,
    Scenario,
    ScenarioJob,
    Work,
)
from callsheet.scheduler.core.words.events import Event
from callsheet.scheduler.core.words.model import (
    CPU,
    MEMORY,
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    JobRequest,
    ResourceDemand,
    RetryPolicy,
    SpeedUp,
    Timeouts,
    TrajectoryRequest,
)
from callsheet.scheduler.core.words.registration import NodeDescription, ServiceDescription

GPU = "gpu"
SANDBOX_SERVICE = "sandbox"
# No client of a scenario gives up waiting, and no trajectory is idle for too long: a scenario knows neither.
NEVER_S = 1e9
RETRIES = RetryPolicy(max_attempts=1_000)
NO_SPEC = b""

# What takes cores unless it asks a service or an API: a call of a tool, too, where a trace names no quota for it.
ON_CORES = frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP, ActionKind.REWARD, ActionKind.TOOL_CALL})


def quota_service(quota: str) -> str:
    """The service that calls an outside API."""
    return f"api/{quota}"


def gpu_parts(models: tuple[Model, ...]) -> int:
    """Units that a GPU has, so that a call's share of its instance is a whole number of them."""
    return math.lcm(*(model.slots for model in models))


def job_request(share: ScenarioJob) -> JobRequest:
    """The job that a scenario's share describes."""
    return JobRequest(share.name, share.weight, share.priority, 0, 0, NO_SPEC, detached=True)


def trajectory_request(rollout: Rollout) -> TrajectoryRequest:
    """The trajectory of a rollout."""
    return TrajectoryRequest(rollout.job, rollout.name, None, NEVER_S, NO_SPEC)


class RequestBook:
    """Makes the requests of actions. Demands and timeouts repeat, so equal ones are made once and shared."""

    def __init__(self, cluster: Cluster) -> None:
        parts = gpu_parts(cluster.models)
        self._gpu_units = {model.name: model.gpus * parts // model.slots for model in cluster.models}
        self._quotas = {quota.name: quota for quota in cluster.quotas}
        self._pulls = cluster.pull_s > 0
        self._demands: dict[tuple[object, ...], Demand] = {}
        self._timeouts: dict[float, Timeouts] = {}

    def action(self, key: ActionKey, work: Work, rollout: Rollout) -> ActionRequest:
        """The request for one action.

        Args:
            key: Its key.
            work: What it does; only what a client could say of it is read.
            rollout: Whose it is.
        """
        return ActionRequest(
            key=key,
            kind=work.kind,
            trajectory_id=rollout.name,
            service=_service(work),
            demand=self._demand(work, rollout),
            timeouts=self._timeouts_of(work.timeout_s),
            retry=RETRIES,
            weight=1.0,
            wait_if_unservable=False,
            in_sandbox=work.in_sandbox,
            expected_duration=0.0,
            body_hash=NO_SPEC,
            spec=NO_SPEC,
            label=work.label,
            task=rollout.task,
            # To pull an image is what a sandbox's set-up takes here.
            set_up=rollout.image if self._pulls and work.kind is ActionKind.ENV_RESET else "",
        )

    def _timeouts_of(self, execution_s: float) -> Timeouts:
        timeouts = self._timeouts.get(execution_s)
        if timeouts is None:
            timeouts = self._timeouts[execution_s] = Timeouts(NEVER_S, min(execution_s, NEVER_S), NEVER_S)
        return timeouts

    def _demand(self, work: Work, rollout: Rollout) -> Demand:
        held = rounded_up(_sandbox_memory_mb(rollout)) if work.kind is ActionKind.ENV_RESET else 0
        tokens = rounded_up(work.tokens)
        facts = (work.service, work.quota, tokens, work.cpu_s > 0, work.max_width, work.parallel_fraction, held)
        demand = self._demands.get(facts)
        if demand is None:
            demand = self._demands[facts] = Demand(tuple(self._entries(work, held)))
        return demand

    def _quota_entries(self, work: Work) -> list[ResourceDemand]:
        quotas = quotas_of(self._quotas[work.quota])
        wanted = {CALLS: 1, TOKENS: rounded_up(work.tokens)}
        units = {name: min(wanted[name], quota.burst) for name, quota in quotas.items()}
        return [ResourceDemand(name, count, count) for name, count in units.items() if count]

    def _entries(self, work: Work, held: int) -> list[ResourceDemand]:
        if work.service:
            units = self._gpu_units[work.service]
            return [ResourceDemand(GPU, units, units)]
        if work.quota:
            return self._quota_entries(work)
        entries = [ResourceDemand(CPU, 1, max(work.max_width, 1), SpeedUp(work.parallel_fraction))]
        if held:
            entries.append(ResourceDemand(MEMORY, held, held, held_by_trajectory=True))
        return entries


def _service(work: Work) -> str:
    if work.service:
        return work.service
    return quota_service(work.quota) if work.quota else SANDBOX_SERVICE


def _sandbox_memory_mb(rollout: Rollout) -> int:
    """A sandbox's memory limit: what it keeps, and the most that a command in it adds. They run one at a time."""
    peaks = (work.peak_memory_mb for work in rollout.works() if work.in_sandbox or work is rollout.reset)
    return rollout.memory_mb + max(peaks, default=0)


def rounded_up(memory_mb: int) -> int:
    """To three binary digits, as clients write round numbers; interchangeable actions then ask for the same."""
    step = 1 << max(memory_mb.bit_length() - 3, 0)
    return -(-memory_mb // step) * step


def join_all(scenario: Scenario, *, cores_shared: bool = True) -> Iterator[Event]:
    """The events by which every manager of a cluster registers; a manager is called like its node.

    Args:
        scenario: Whose cluster it is.
        cores_shared: Whether sandbox managers share their cores among their commands by themselves.
    """
    cluster = scenario.cluster
    for name, cpu in cluster.cpu_nodes().items():
        yield from _sandbox_manager(name, cpu, cores_shared=cores_shared)
    for name, gpu in cluster.gpu_nodes().items():
        yield from _model_manager(name, gpu, cluster)
    for quota in cluster.quotas:
        yield from _quota_manager(quota)


def _sandbox_manager(name: str, nodes: CpuNodes, *, cores_shared: bool) -> Iterator[Event]:
    per_numa = nodes.cores // nodes.numa_nodes
    numa_cores = tuple(
        tuple(range(first * per_numa, (first + 1) * per_numa if first + 1 < nodes.numa_nodes else nodes.cores))
        for first in range(nodes.numa_nodes)
    )
    service = ServiceDescription(SANDBOX_SERVICE, ON_CORES, 0, {}, shared={CPU: nodes.cores} if cores_shared else {})
    return joining(NodeDescription(name, {MEMORY: nodes.memory_mb}, numa_cores), service)


def _model_manager(name: str, nodes: GpuNodes, cluster: Cluster) -> Iterator[Event]:
    services = [ServiceDescription(model.name, frozenset({ActionKind.REWARD}), 0, {}) for model in cluster.models]
    return joining(NodeDescription(name, {GPU: nodes.gpus * gpu_parts(cluster.models)}, ()), *services)


def _quota_manager(quota: Quota) -> Iterator[Event]:
    service = ServiceDescription(
        quota_service(quota.name), frozenset({ActionKind.TOOL_CALL, ActionKind.REWARD}), quota.concurrency, {}
    )
    return joining(NodeDescription(service.name, {}, (), quotas_of(quota)), service)
