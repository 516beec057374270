"""Trajectories and their groups: opening, joining and closing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from callsheet.scheduler.core.jobs.batches import buffer_result, check_room_for_result, check_same_result, member_closed
from callsheet.scheduler.core.jobs.final_close import closed_now, count_open, join
from callsheet.scheduler.core.jobs.leases import check_not_expired, open_job
from callsheet.scheduler.core.jobs.open_limits import check_room_for_trajectory
from callsheet.scheduler.core.jobs.pacing import most_buffered_of
from callsheet.scheduler.core.state.closed_trajectories import ClosedTrajectory
from callsheet.scheduler.core.state.entities import NO_BUDGET, Group, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.model import (
    GroupRequest,
    OnInfra,
    Opened,
    Opening,
    TrajectoryEnd,
    TrajectoryRequest,
    TrajectoryResult,
)
from callsheet.scheduler.core.words.records import TrajectoryClosed, TrajectoryOpened
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, failed_precondition, invalid
from callsheet.scheduler.core.work.admission_counts import count_live, note_begun
from callsheet.scheduler.core.work.lifecycle import cancel, drop_sandbox
from callsheet.scheduler.core.work.over_or_unknown import check_trajectory_not_forgotten, closed_trajectory

CLOSED = "its trajectory was closed"
REDUNDANT = "its group has its quorum"
MIN_IDLE_CHECK = 1.0


def on_trajectory_open(state: SchedulerState, event: events.TrajectoryOpenRequested, now: float) -> None:
    """Opens a trajectory; the same spec again is accepted, even if it has been closed since and is kept."""
    request = event.trajectory
    job = open_job(state, request.job_id, event.reply_to, works_at=now)
    known = job.trajectory_specs.get(request.trajectory_id)
    if known is not None and known != request.spec:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "trajectory.trajectory_id", request.trajectory_id, "exists with another spec"
        )
    if known is None:
        check_trajectory_not_forgotten(job, request)
        check_not_expired(job)
        check_room_for_trajectory(state, job, request)
        _check_group(state, job, request)
        trajectory = add_trajectory(state, job, request, job.policy_version, now)
        group_id = request.group.group_id if request.group is not None else ""
        opened_with = request.spec, job.policy_version, now, group_id
        state.persist(TrajectoryOpened(request.job_id, request.trajectory_id, *opened_with))
        if request.group is not None:
            group = job.groups[request.group.group_id]
            if group.has_quorum:
                close_trajectory(state, trajectory, TrajectoryEnd.ABANDONED, REDUNDANT, now)
    closed = job.closed_trajectories.get(request.trajectory_id)
    if closed is not None:
        opened = Opened(Opening.CLOSED, closed.end, job.begun_after)
    else:
        opened = Opened(Opening.CREATED if known is None else Opening.ATTACHED, life=job.begun_after)
    state.accept(event.reply_to, opened=opened)


def _check_group(state: SchedulerState, job: Job, request: TrajectoryRequest) -> None:
    if request.group is None:
        return
    quorum, most = request.group.quorum, most_buffered_of(state, job)
    if quorum > most:
        raise invalid("trajectory.group.quorum", quorum, f"must be at most {most}, which the job's buffer holds")
    group = job.groups.get(request.group.group_id)
    if group is None:
        return
    if group.spec != _new_group(request.group).spec:
        rule = f"must agree with its siblings: size {group.size}, quorum {group.quorum}, "
        rule += f"{group.on_infra.name} for {group.infra_budget} of them"
        raise failed_precondition("trajectory.group", request.group, rule)
    if group.cancelled:
        rule = "was cancelled; it takes no more trajectories"
        raise failed_precondition("trajectory.group.group_id", request.group.group_id, rule)
    if len(group.members) >= group.size:
        raise failed_precondition("trajectory.group.size", group.size, "the group has all its trajectories")


def group_of(job: Job, request: TrajectoryRequest) -> Group | None:
    """The group of a trajectory, made with its first member; None if it has none."""
    if request.group is None:
        return None
    return job.groups.setdefault(request.group.group_id, _new_group(request.group))


def _new_group(spec: GroupRequest) -> Group:
    # Who does not say how many are replaced leaves that to the clients.
    default = NO_BUDGET if spec.on_infra is OnInfra.REPLACE else spec.size
    budget = default if spec.infra_budget is None else spec.infra_budget
    return Group(spec.size, spec.quorum, spec.on_infra, budget)


def add_trajectory(
    state: SchedulerState,
    job: Job,
    request: TrajectoryRequest,
    policy_version: int,
    now: float,
    *,
    opened_at: float | None = None,
) -> Trajectory:
    """Adds an open trajectory, opened now unless told otherwise, to its job and its group."""
    trajectory = Trajectory(request, job, policy_version, now if opened_at is None else opened_at, now)
    job.trajectories[request.trajectory_id] = trajectory
    job.trajectory_specs[request.trajectory_id] = request.spec
    count_open(state, job, request)
    group = group_of(job, request)
    if group is not None:
        join(state, job, group, request.trajectory_id)
    _set_timer(state, trajectory, now + request.idle_timeout)
    return trajectory


def _set_timer(state: SchedulerState, trajectory: Trajectory, idle_check: float) -> None:
    deadline = trajectory.request.deadline
    due = min(idle_check, trajectory.opened_at + deadline) if deadline else idle_check
    state.timers.set(("trajectory", trajectory.key), due)


def trajectory_due(state: SchedulerState, job_id: str, trajectory_id: str, now: float) -> None:
    """Closes a trajectory that is past its deadline or was idle for too long; else it is looked after again."""
    trajectory = state.find_trajectory(job_id, trajectory_id)
    if trajectory is None:
        return
    deadline, idle_timeout = trajectory.request.deadline, trajectory.request.idle_timeout
    idle_until = trajectory.last_activity + idle_timeout
    if deadline and now >= trajectory.opened_at + deadline:
        reason = f"its trajectory reached its deadline of {deadline:g} s"
        close_trajectory(state, trajectory, TrajectoryEnd.ABANDONED, reason, now)
    elif trajectory.open_actions:
        # However short the timeout is, this is no busy waiting.
        _set_timer(state, trajectory, now + max(idle_timeout, MIN_IDLE_CHECK))
    elif now < idle_until:
        _set_timer(state, trajectory, idle_until)
    else:
        reason = "its trajectory was idle for too long"
        close_trajectory(state, trajectory, TrajectoryEnd.ABANDONED, reason, now)


def on_trajectory_close(state: SchedulerState, event: events.TrajectoryCloseRequested, now: float) -> None:
    """Closes a trajectory; closing it again with the same end is accepted."""
    job = open_job(state, event.job_id, event.reply_to, works_at=now)
    trajectory = job.trajectories.get(event.trajectory_id)
    if trajectory is not None:
        if event.result is not None:
            # It is not idle while it waits for room.
            trajectory.last_activity = now
            check_room_for_result(state, trajectory, event.result)
        close_trajectory(state, trajectory, event.end, event.reason or CLOSED, now, result=event.result)
    else:
        closed = closed_trajectory(job, event.trajectory_id)
        if closed.end is not event.end:
            rule = f"was closed as {closed.end.value}: {closed.reason}"
            raise RefusedError(RefusalCode.ALREADY_EXISTS, "end", event.end.value, rule)
        check_same_result(job, event.trajectory_id, event.end, event.result)
    state.accept(event.reply_to)


def close_trajectory(
    state: SchedulerState,
    trajectory: Trajectory,
    end: TrajectoryEnd,
    reason: str,
    now: float,
    *,
    result: TrajectoryResult | None = None,
) -> None:
    """Cancels a trajectory's actions, releases its sandbox and counts it in its group; a result enters the buffer."""
    job_id, trajectory_id = trajectory.key
    job = trajectory.job
    del job.trajectories[trajectory_id]
    add_closed(job, trajectory.request, end, reason, trajectory.policy_version, cost=trajectory.account.spent)
    state.timers.drop(("trajectory", trajectory.key))
    # The last first: an action that waits for a reset ahead of it would otherwise end as one whose sandbox is gone.
    for action in reversed(list(trajectory.open_actions.values())):
        cancel(state, action, reason, now)
    if trajectory.admitted_at is not None:
        count_live(trajectory, -1)
    if trajectory.sandbox_id:
        drop_sandbox(state, trajectory, now, lost=False)
    if not job.over:
        reward = result.reward if result is not None else None
        state.persist(TrajectoryClosed(job_id, trajectory_id, end.value, reason, now, reward))
        if result is not None:
            buffer_result(state, trajectory, result, now)
    if trajectory.open_actions:
        job.closing[trajectory_id] = trajectory
    group = group_of(job, trajectory.request)
    group_id = trajectory.request.group.group_id if trajectory.request.group is not None else ""
    if group is not None:
        count_closed(group, trajectory_id, end)
        if end is TrajectoryEnd.COMPLETED:
            note_begun(job, group_id)
        if end is not TrajectoryEnd.ABANDONED and group.has_quorum:
            _end_redundant(state, job, group, group_id)
    closed_now(state, trajectory, now)
    member_closed(state, job, group_id, now)


def _end_redundant(state: SchedulerState, job: Job, group: Group, group_id: str) -> None:
    """Closes the open members of a group that has its quorum."""
    key = ("quorum", job.request.job_id, group_id)
    if key not in state.chores:
        parts = (partial(abandon, state, job, [each], REDUNDANT) for each in sorted(group.members))
        state.chores.add(key, parts)


def add_closed(
    job: Job, request: TrajectoryRequest, end: TrajectoryEnd, reason: str, policy_version: int, *, cost: Cost
) -> None:
    """Adds what stays of a trajectory that was closed."""
    group_id = request.group.group_id if request.group is not None else ""
    job.closed_trajectories[request.trajectory_id] = ClosedTrajectory(end, reason, policy_version, group_id, cost)
    job.completed_trajectories += end is TrajectoryEnd.COMPLETED


def abandon(state: SchedulerState, job: Job, trajectory_ids: Iterable[str], reason: str, now: float) -> None:
    """Closes those of a job's trajectories that are open, each if it still is when its turn comes."""
    for trajectory_id in trajectory_ids:
        trajectory = job.trajectories.get(trajectory_id)
        if trajectory is not None:
            close_trajectory(state, trajectory, TrajectoryEnd.ABANDONED, reason, now)


def count_closed(group: Group, trajectory_id: str, end: TrajectoryEnd) -> None:
    """Counts a closed trajectory in its group."""
    if end is TrajectoryEnd.LOST:
        group.lose(trajectory_id)
    else:
        group.members[trajectory_id] = None
        group.completed += end is TrajectoryEnd.COMPLETED
