"""Jobs, trajectories and groups as clients and operators see them: the core's state as messages."""

from __future__ import annotations

from callsheet.scheduler.core.jobs.idle_jobs import idle_at, idle_timeout_of
from callsheet.scheduler.core.jobs.leases import grace_of
from callsheet.scheduler.core.state.entities import NO_BUDGET, Group, Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import TrajectoryEnd
from callsheet.scheduler.core.work.costs import group_cost
from callsheet.scheduler.history.messages import cost_message
from callsheet.scheduler.service.codec.buffer_answers import buffer_status
from callsheet.scheduler.service.codec.decode import DEFAULT_IDLE_TIMEOUT
from callsheet.scheduler.service.codec.durations import fill_duration, to_duration
from callsheet.scheduler.service.codec.openings import life_of, to_wire
from callsheet.scheduler.service.codec.rollout_answers import rollouts_of
from callsheet.v1 import job_pb2


def job_status(state: SchedulerState, job: Job, now: float) -> job_pb2.JobStatus:
    """Returns a job, with its defaults filled in."""
    counts = {state.value: count for state, count in job.state_counts.items() if count}
    lease, request = job.lease, job.request
    status = job_pb2.JobStatus(
        spec=job_pb2.JobSpec.FromString(request.spec),
        open_trajectories=len(job.trajectories),
        waiting_trajectories=len(state.waiting_trajectories.get(request.job_id, ())),
        actions=counts,
        failures=job.failure_counts,
        policy_version=job.policy_version,
        sessions=len(lease.sessions),
        expired=lease.expired,
        forgotten_actions=len(job.forgotten),
        dead_sandboxes=job.dead_sandboxes,
        rollouts=rollouts_of(state, request.job_id, now),
        buffer=buffer_status(state, job, now),
        life=life_of(job.begun_after),
        cost=cost_message(job.account.until(now)),
    )
    status.spec.share = request.weight
    status.spec.priority_class = job_pb2.PriorityClass.ValueType(request.priority_class)
    if not request.detached and not status.spec.HasField("grace"):
        fill_duration(status.spec.grace, grace_of(state, job))
    if lease.ends_at is not None:
        left = status.closes_in if lease.expired else status.expires_in
        left.CopyFrom(to_duration(max(lease.ends_at - now, 0.0)))
    _fill_idleness(status, state, job, now)
    return status


def _fill_idleness(status: job_pb2.JobStatus, state: SchedulerState, job: Job, now: float) -> None:
    timeout, due = idle_timeout_of(state, job), idle_at(state, job)
    if timeout is None or due is None:
        return
    if not status.spec.HasField("idle_timeout"):
        fill_duration(status.spec.idle_timeout, timeout)
    if not job.open_actions:
        status.idle_closes_in.CopyFrom(to_duration(max(due - now, 0.0)))


def trajectory_status(job: Job, trajectory_id: str, now: float) -> job_pb2.TrajectoryStatus:
    """Returns a trajectory of a job, open or closed, with its defaults filled in."""
    status = job_pb2.TrajectoryStatus(spec=job_pb2.TrajectorySpec.FromString(job.trajectory_specs[trajectory_id]))
    if not status.spec.idle_timeout.ByteSize():
        fill_duration(status.spec.idle_timeout, DEFAULT_IDLE_TIMEOUT)
    if status.spec.HasField("group"):
        _fill_group(status.spec.group)
    trajectory = job.trajectories.get(trajectory_id)
    if trajectory is not None:
        live = job_pb2.TrajectoryStatus(
            open_actions=len(trajectory.open_actions),
            admitted=trajectory.admitted_at is not None,
            sandbox_id=trajectory.sandbox_id,
            manager_id=trajectory.manager_id,
            policy_version=trajectory.policy_version,
            cost=cost_message(trajectory.account.until(now)),
        )
        status.MergeFrom(live)
    else:
        closed = job.closed_trajectories[trajectory_id]
        status.end, status.reason = to_wire(closed.end), closed.reason
        status.policy_version = closed.policy_version
        status.cost.CopyFrom(cost_message(closed.cost))
    return status


def _fill_group(spec: job_pb2.GroupSpec) -> None:
    spec.quorum = spec.quorum or spec.size
    spec.on_infra = spec.on_infra or job_pb2.ON_INFRA_REPLACE


def group_status(job: Job, group_id: str, group: Group, now: float) -> job_pb2.GroupStatus:
    """Returns a group of a job."""
    status = job_pb2.GroupStatus(
        spec=job_pb2.GroupSpec(
            group_id=group_id,
            size=group.size,
            quorum=group.quorum,
            on_infra=job_pb2.OnInfra.ValueType(group.on_infra),
            infra_budget=group.infra_budget if group.infra_budget < NO_BUDGET else None,
        ),
        lost=group.lost,
        has_quorum=group.has_quorum,
        masked=sorted(group.masked),
        dropped=sorted(group.dropped),
        cost=cost_message(group_cost(job, group, now)),
    )
    _fill_group(status.spec)
    for member in group.members:
        closed = job.closed_trajectories.get(member)
        if closed is None:
            status.open.append(member)
        elif closed.end is TrajectoryEnd.COMPLETED:
            status.completed.append(member)
        else:
            status.abandoned.append(member)
    return status
