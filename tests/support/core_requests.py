"""Requests of the core, spelled shortly. A spec's bytes stand for the request that was made from them."""

from __future__ import annotations

from callsheet.scheduler.core.words.model import (
    CPU,
    MEMORY,
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    GroupRequest,
    JobRequest,
    PriorityClass,
    ResourceDemand,
    RetryPolicy,
    SandboxCopy,
    SpeedUp,
    Timeouts,
    TrajectoryRequest,
)
from callsheet.scheduler.core.words.staleness import StalenessPolicy

JOB = "job"
LONG = Timeouts(schedule_to_start=1e6, start_to_close=1e6, schedule_to_close=1e6)
IN_SANDBOX = frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP})


def key_of(action: str | ActionKey) -> ActionKey:
    """The key of an action of the default job, or a key itself."""
    return action if isinstance(action, ActionKey) else ActionKey(JOB, action)


def fixed(**units: int) -> Demand:
    """So many units of each resource, held by the action."""
    return Demand(tuple(ResourceDemand(name, count, count) for name, count in units.items()))


def elastic(least: int, most: int, *, speed_up: SpeedUp | None = None, resource: str = CPU) -> Demand:
    """A range of units of one resource."""
    return Demand((ResourceDemand(resource, least, most, speed_up or SpeedUp()),))


def kept(*, cpu: int = 0, memory: int = 0, start_cpu: int = 0) -> Demand:
    """Units that the sandbox keeps for its life, and cores for the reset alone."""
    entries = []
    if start_cpu or cpu:
        entries.append(ResourceDemand(CPU, cpu or start_cpu, cpu or start_cpu, held_by_trajectory=bool(cpu)))
    if memory:
        entries.append(ResourceDemand(MEMORY, memory, memory, held_by_trajectory=True))
    return Demand(tuple(entries))


DEFAULT_DEMANDS = {
    ActionKind.GENERATE: Demand(),
    ActionKind.ENV_RESET: kept(start_cpu=1, memory=256),
    ActionKind.ENV_STEP: fixed(cpu=1),
    ActionKind.TOOL_CALL: Demand(),
    ActionKind.REWARD: fixed(cpu=1),
}


def job_request(
    job_id: str = JOB,
    *,
    weight: float = 1.0,
    priority: PriorityClass = PriorityClass.TRAIN,
    max_actions: int = 0,
    max_staleness: int = 0,
    grace: float | None = None,
    body: str = "",
    dead_sandbox_is_infra: bool = False,
    max_buffered: int = 0,
    staleness: StalenessPolicy | None = None,
) -> JobRequest:
    """A job; without a grace it needs no client session. `staleness` is for what is not its eviction."""
    policy = staleness or StalenessPolicy()
    more = f"{max_buffered} {policy}" if max_buffered or staleness else ""
    spec = f"{job_id} {weight} {priority.name} {max_actions} {max_staleness} {grace} {body}{more}"
    return JobRequest(
        job_id,
        weight,
        priority,
        max_actions,
        max_staleness,
        spec.encode(),
        grace,
        detached=grace is None,
        dead_sandbox_is_infra=dead_sandbox_is_infra,
        max_buffered=max_buffered,
        admit_within=policy.admit_within,
        select_within=policy.select_within,
    )


def trajectory_request(
    trajectory_id: str,
    *,
    job_id: str = JOB,
    group: GroupRequest | None = None,
    idle_timeout: float = 1e6,
    deadline: float = 0.0,
    body: str = "",
) -> TrajectoryRequest:
    """A trajectory."""
    # What is left to its default is left out: some tests bound its bytes.
    default = group is None or group == GroupRequest(group.group_id, group.size, group.quorum)
    shown: object = group
    if group is not None and default:
        shown = f"GroupRequest(group_id={group.group_id!r}, size={group.size}, quorum={group.quorum})"
    spec = f"{job_id}/{trajectory_id} {shown} {idle_timeout} {deadline} {body}".encode()
    return TrajectoryRequest(job_id, trajectory_id, group, idle_timeout, spec, deadline)


def action_request(
    action_id: str,
    kind: ActionKind = ActionKind.TOOL_CALL,
    trajectory_id: str = "",
    *,
    job_id: str = JOB,
    demand: Demand | None = None,
    timeouts: Timeouts = LONG,
    retry: RetryPolicy | None = None,
    service: str = "",
    weight: float = 1.0,
    wait: bool = False,
    in_sandbox: bool = False,
    expected: float = 0.0,
    called_once: bool = False,
    command_timeout: float = 0.0,
    copy: SandboxCopy = SandboxCopy.NEVER,
    body: str = "",
) -> ActionRequest:
    """An action; a reward is in the sandbox only if `in_sandbox` says so."""
    demand = DEFAULT_DEMANDS[kind] if demand is None else demand
    identity = (action_id, kind, trajectory_id, job_id, demand.entries, timeouts, retry, service, weight)
    spec = repr((*identity, command_timeout, body)).encode()
    return ActionRequest(
        key=ActionKey(job_id, action_id),
        kind=kind,
        trajectory_id=trajectory_id,
        service=service,
        demand=demand,
        timeouts=timeouts,
        retry=retry or RetryPolicy(),
        weight=weight,
        wait_if_unservable=wait,
        in_sandbox=in_sandbox or kind in IN_SANDBOX,
        expected_duration=expected,
        body_hash=spec,
        spec=spec,
        called_once=called_once,
        command_timeout=command_timeout,
        copy=copy,
    )
