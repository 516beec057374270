"""Decides when a closed trajectory is over: nothing of it is open any more, and nothing of its group.

Until then it counts as open, because its last actions may still be stopped. The seats and the quorum of a group depend
on all its members, so they stay, and later go, together. A lost member has no seat. It goes by itself, unless the group
has a budget of losses that it counts against.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from callsheet.scheduler.core.jobs.retention import keep_closed, reopen
from callsheet.scheduler.core.state.entities import Group, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import TrajectoryRequest


def count_open(state: SchedulerState, job: Job, request: TrajectoryRequest) -> None:
    """Counts a trajectory that is in its job from now on."""
    size = len(request.spec)
    job.open_trajectories += 1
    job.spec_bytes += size
    state.open_trajectories += 1
    state.spec_bytes += size


def join(state: SchedulerState, job: Job, group: Group, trajectory_id: str) -> None:
    """An open trajectory takes a seat in its group."""
    group.members[trajectory_id] = None
    group.unfinished += 1
    reopen(state, job, group)


def closed_now(state: SchedulerState, trajectory: Trajectory, now: float) -> None:
    """A trajectory was closed, and all that follows for its group has been done."""
    if trajectory.request.trajectory_id not in trajectory.job.closing:
        _settle(state, trajectory.job, trajectory.request, now)


def last_action_over(state: SchedulerState, trajectory: Trajectory, now: float) -> None:
    """A trajectory has no open action any more; if it was closed before, it is over now."""
    if trajectory.job.closing.pop(trajectory.request.trajectory_id, None) is not None:
        _settle(state, trajectory.job, trajectory.request, now)


def _settle(state: SchedulerState, job: Job, request: TrajectoryRequest, now: float) -> None:
    if job.over:
        return
    group = job.groups.get(request.group.group_id) if request.group is not None else None
    if group is None or request.group is None:
        keep_closed(state, job, (request.trajectory_id,), "", now)
        return
    if group.goes_alone(request.trajectory_id):
        keep_closed(state, job, (request.trajectory_id,), "", now)
    group.unfinished -= 1
    if not group.unfinished:
        group.closed = keep_closed(state, job, group.together, request.group.group_id, now)


def restore_closed(state: SchedulerState, job: Job, ended_at: Mapping[str, float]) -> None:
    """Keeps what is over after a restart.

    Args:
        state: The scheduler's state.
        job: One with all its trajectories, groups and open actions.
        ended_at: When each closed trajectory was closed.
    """
    for trajectory_id in job.closing:
        group = job.groups.get(job.closed_trajectories[trajectory_id].group_id)
        if group is not None:
            group.unfinished += 1
    over: list[tuple[float, tuple[str, ...], str]] = []
    for trajectory_id, closed in job.closed_trajectories.items():
        group = job.groups.get(closed.group_id)
        if trajectory_id not in job.closing and (group is None or group.goes_alone(trajectory_id)):
            over.append((ended_at[trajectory_id], (trajectory_id,), ""))
    for group_id, group in job.groups.items():
        if not group.unfinished:
            last = max(ended_at[each] for each in (*group.members, *group.lost))
            over.append((last, group.together, group_id))
    for at, trajectory_ids, group_id in sorted(over, key=itemgetter(0)):
        kept = keep_closed(state, job, trajectory_ids, group_id, at)
        if group_id:
            job.groups[group_id].closed = kept
