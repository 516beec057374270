"""A cluster's machines as the managers that would register for them."""

from __future__ import annotations

from collections.abc import Iterator

from callsheet.benchmarks.peers import joining
from callsheet.benchmarks.simulator.quota_books import quotas_of
from callsheet.benchmarks.simulator.scenario import Cluster, CpuNodes, GpuNodes, Quota, Scenario
from callsheet.benchmarks.simulator.shell.requests import (
    FRESH_MEMORY,
    GPU,
    SANDBOX_SERVICE,
    gpu_parts,
    quota_service,
    rounded_up,
)
from callsheet.scheduler.core.events import Event
from callsheet.scheduler.core.model import CPU, MEMORY, ActionKind
from callsheet.scheduler.core.registration import NodeDescription, ServiceDescription

IN_SANDBOXES = frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP, ActionKind.REWARD})


# At most this part of a node's memory is kept for commands without a sandbox.
_MOST_FRESH_MEMORY = 0.25


def join_all(scenario: Scenario, *, cores_shared: bool = True) -> Iterator[Event]:
    """The events by which every manager of a cluster registers; a manager is called like its node.

    Args:
        scenario: Whose cluster it is.
        cores_shared: Whether sandbox managers share their cores among their commands by themselves.
    """
    cluster = scenario.cluster
    peak_mb = _fresh_peak_mb(scenario)
    for name, cpu in cluster.cpu_nodes().items():
        yield from _sandbox_manager(name, cpu, peak_mb, cores_shared=cores_shared)
    for name, gpu in cluster.gpu_nodes().items():
        yield from _model_manager(name, gpu, cluster)
    for quota in cluster.quotas:
        yield from _quota_manager(quota)


def _fresh_peak_mb(scenario: Scenario) -> int:
    """The most memory that a command without a sandbox needs; an operator knows it."""
    rewards = (work for rollout in scenario.rollouts for work in rollout.rewards)
    actions = (work for rollout in scenario.rollouts for turn in rollout.turns for work in turn.actions)
    peaks = (work.peak_memory_mb for work in (*rewards, *actions) if not work.in_sandbox)
    return rounded_up(max(peaks, default=0))


def _sandbox_manager(name: str, nodes: CpuNodes, fresh_peak_mb: int, *, cores_shared: bool) -> Iterator[Event]:
    """A sandbox manager. It keeps memory for as many commands without a sandbox as it has cores."""
    fresh_mb = max(fresh_peak_mb, min(nodes.cores * fresh_peak_mb, int(_MOST_FRESH_MEMORY * nodes.memory_mb)))
    memory = {MEMORY: nodes.memory_mb - fresh_mb, FRESH_MEMORY: fresh_mb}
    per_numa = nodes.cores // nodes.numa_nodes
    numa_cores = tuple(
        tuple(range(first * per_numa, (first + 1) * per_numa if first + 1 < nodes.numa_nodes else nodes.cores))
        for first in range(nodes.numa_nodes)
    )
    service = ServiceDescription(
        SANDBOX_SERVICE, IN_SANDBOXES, 0, {}, shared={CPU: nodes.cores} if cores_shared else {}
    )
    return joining(NodeDescription(name, memory, numa_cores), service)


def _model_manager(name: str, nodes: GpuNodes, cluster: Cluster) -> Iterator[Event]:
    services = [ServiceDescription(model.name, frozenset({ActionKind.REWARD}), 0, {}) for model in cluster.models]
    return joining(NodeDescription(name, {GPU: nodes.gpus * gpu_parts(cluster.models)}, ()), *services)


def _quota_manager(quota: Quota) -> Iterator[Event]:
    service = ServiceDescription(
        quota_service(quota.name), frozenset({ActionKind.TOOL_CALL, ActionKind.REWARD}), quota.concurrency, {}
    )
    return joining(NodeDescription(service.name, {}, (), quotas_of(quota)), service)
