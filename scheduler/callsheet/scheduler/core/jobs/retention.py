"""How long a job keeps what is over in it: finished actions, closed trajectories and their groups.

The oldest of a job go first. When all jobs together keep too much, the job that keeps the most gives way. What goes
leaves an entry each (`ForgottenWork`), so that it is never taken for new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from callsheet.scheduler.core.jobs.batches import serve_takers
from callsheet.scheduler.core.state.closed_trajectories import ClosedTogether, ClosedTrajectory
from callsheet.scheduler.core.state.entities import FinishedAction, Group, Job, Trajectory
from callsheet.scheduler.core.state.forgotten_ids import entry, group_entry, trajectory_entry
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.records import GroupCancelled, TrajectoryBegan, WorkForgotten

# Actions and trajectories forgotten in one step, and so in one commit; a group goes as a whole.
MAX_PER_STEP: Final = 256
# What is due soon is forgotten with what is due now: rows in the journal are then few. As a part of the time kept, and
# in seconds at most.
_TOGETHER: Final = 1.0 / 16.0
_TOGETHER_S: Final = 60.0
# Where there is too much, so large a part goes at once.
_PART: Final = 1.0 / 16.0
# And so much is free afterwards, as all jobs are looked at: many of them may keep a little each.
_ROOM: Final = 1.0 / 64.0
_TIMER: Final = ("retention", "")


@dataclass(slots=True)
class _Leaving:
    """Things of one job that are forgotten in one step."""

    action_ids: list[str] = field(default_factory=list)
    trajectory_ids: list[str] = field(default_factory=list)
    entries: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.action_ids) + len(self.trajectory_ids)


def keep(state: SchedulerState, job: Job, action_id: str, finished: FinishedAction) -> None:
    """Keeps an action that has its outcome; those of a job must come in the order of their outcomes."""
    job.actions[action_id] = finished
    job.finished.append(action_id)
    state.finished_actions += 1
    _count_bytes(state, job, finished.size)
    _watch(state, finished.finished_at)


def keep_closed(
    state: SchedulerState, job: Job, trajectory_ids: Sequence[str], group_id: str, ended_at: float
) -> ClosedTogether:
    """Keeps closed trajectories of which nothing is open any more; those of a job must come in the order of that."""
    size = sum(_closed_bytes(job, each) for each in trajectory_ids)
    together = ClosedTogether(ended_at, tuple(trajectory_ids), group_id, size)
    job.closed.append(together)
    _count_closed(state, job, together, 1)
    _watch(state, ended_at)
    return together


def reopen(state: SchedulerState, job: Job, group: Group) -> None:
    """A group has another member: it and those before are open again, as far as retention is concerned."""
    if group.closed is not None:
        group.closed.reopened = True
        _count_closed(state, job, group.closed, -1)
        group.closed = None


def _count_closed(state: SchedulerState, job: Job, together: ClosedTogether, sign: int) -> None:
    """Counts trajectories among what is kept, or (sign -1) among what is open."""
    count, spec_bytes = len(together.trajectory_ids), _spec_bytes(job, together)
    job.closed_count += sign * count
    job.open_trajectories -= sign * count
    job.spec_bytes -= sign * spec_bytes
    state.closed_trajectories += sign * count
    state.open_trajectories -= sign * count
    state.spec_bytes -= sign * spec_bytes
    _count_bytes(state, job, sign * together.size)


def _spec_bytes(job: Job, together: ClosedTogether) -> int:
    return sum(len(job.trajectory_specs[each]) for each in together.trajectory_ids)


def _closed_bytes(job: Job, trajectory_id: str) -> int:
    return len(job.trajectory_specs[trajectory_id]) + len(job.closed_trajectories[trajectory_id].reason)


def _count_bytes(state: SchedulerState, job: Job, size: int) -> None:
    job.finished_bytes += size
    state.finished_bytes += size


def _watch(state: SchedulerState, ended_at: float) -> None:
    if _is_too_much(state):
        state.timers.set(_TIMER, ended_at)
    elif state.timers.get(_TIMER) is None:
        state.timers.set(_TIMER, _due(state, ended_at))


def drop_job(state: SchedulerState, job: Job) -> None:
    """A job is closed: nothing of it is kept here, nor open."""
    state.open_trajectories -= job.open_trajectories
    state.spec_bytes -= job.spec_bytes
    state.finished_actions -= len(job.finished)
    state.closed_trajectories -= job.closed_count
    state.finished_bytes -= job.finished_bytes


def retention_due(state: SchedulerState, now: float) -> None:
    """Forgets what was kept long enough, and what is too much; a bounded number, and the rest in the next step."""
    budget = MAX_PER_STEP
    for job in state.jobs.values():
        if budget > 0:
            budget -= _forget(state, job, budget, now)
    if _is_too_much(state):
        _make_room(state, budget)
    for job in [each for each in state.jobs.values() if len(each.buffer.takers)]:
        # A group that is forgotten has no other members, so that somebody may have waited for that.
        serve_takers(state, job, now)
    if budget <= 0 or _is_too_much(state):
        state.timers.set(_TIMER, now)
        return
    oldest = [ended_at for job in state.jobs.values() if (ended_at := _oldest(job)) is not None]
    if oldest:
        state.timers.set(_TIMER, _due(state, min(oldest)))


def _is_due(state: SchedulerState, ended_at: float, now: float) -> bool:
    return ended_at + state.settings.finished_actions_s <= now


def _due(state: SchedulerState, ended_at: float) -> float:
    kept_s = state.settings.finished_actions_s
    return ended_at + kept_s + min(kept_s * _TOGETHER, _TOGETHER_S)


def _is_too_much(state: SchedulerState, room: float = 0.0) -> bool:
    """Returns whether more is kept than may be, but for a part of that."""
    kept, most = state.finished_actions + state.closed_trajectories, state.settings.finished_actions
    return kept > most - int(most * room) or _has_too_many_bytes(state, room)


def _has_too_many_bytes(state: SchedulerState, room: float) -> bool:
    most = state.settings.finished_actions_bytes
    return state.finished_bytes > most - int(most * room)


def _make_room(state: SchedulerState, budget: int) -> None:
    """Forgets a part of what each job keeps that keeps the most, or nearly so, until there is some room."""
    while budget > 0 and _is_too_much(state, _ROOM):
        by_bytes = _has_too_many_bytes(state, _ROOM)
        kept = {job_id: job.finished_bytes if by_bytes else _kept(job) for job_id, job in state.jobs.items()}
        most = max(kept.values())
        for job_id, count in kept.items():
            if 2 * count >= most and budget > 0 and _is_too_much(state, _ROOM):
                job = state.jobs[job_id]
                budget -= _forget(state, job, min(budget, max(int(_kept(job) * _PART), 1)), math.inf)


def _kept(job: Job) -> int:
    return len(job.finished) + job.closed_count


def _oldest(job: Job) -> float | None:
    """Since when the oldest thing that a job keeps is over; None if it keeps nothing."""
    while job.closed and job.closed[0].reopened:
        job.closed.popleft()
    times = [_first_finished(job).finished_at] if job.finished else []
    times += [job.closed[0].ended_at] if job.closed else []
    return min(times, default=None)


def _first_finished(job: Job) -> FinishedAction:
    found = job.actions[job.finished[0]]
    if not isinstance(found, FinishedAction):
        raise AssertionError(f"{found.key} counts as finished")
    return found


def _forget(state: SchedulerState, job: Job, most: int, now: float) -> int:
    """Forgets up to so many of the oldest things that are over, a group as a whole; only those that are due by then.

    Returns:
        How many they were.
    """
    leaving = _Leaving()
    while len(leaving) < most:
        oldest = _oldest(job)
        if oldest is None or not _is_due(state, oldest, now):
            break
        if job.finished and _first_finished(job).finished_at <= oldest:
            _forget_action(state, job, leaving)
        else:
            _forget_closed(state, job, leaving)
    if leaving.entries:
        entries = bytes(leaving.entries)
        job.forgotten.add(entries)
        state.persist(
            WorkForgotten(job.request.job_id, tuple(leaving.action_ids), entries, tuple(leaving.trajectory_ids))
        )
    return len(leaving)


def _forget_action(state: SchedulerState, job: Job, leaving: _Leaving) -> None:
    finished = _first_finished(job)
    action_id = job.finished.popleft()
    del job.actions[action_id]
    leaving.action_ids.append(action_id)
    leaving.entries += entry(action_id, finished.body_hash, finished.state)
    state.finished_actions -= 1
    _count_bytes(state, job, -finished.size)
    _keep_beginning(state, job.trajectories.get(finished.tells_of))
    state.summaries.forget(ActionKey(job.request.job_id, action_id))


def _keep_beginning(state: SchedulerState, trajectory: Trajectory | None) -> None:
    """Journals that a live trajectory has begun, since the action is forgotten that told of it."""
    if trajectory is None or trajectory.admitted_at is None or trajectory.had_sandbox or trajectory.began_kept:
        return
    trajectory.began_kept = True
    state.persist(TrajectoryBegan(*trajectory.key, trajectory.policy_version))


def _forget_closed(state: SchedulerState, job: Job, leaving: _Leaving) -> None:
    together = job.closed.popleft()
    job.closed_count -= len(together.trajectory_ids)
    state.closed_trajectories -= len(together.trajectory_ids)
    _count_bytes(state, job, -together.size)
    for trajectory_id in together.trajectory_ids:
        closed = job.closed_trajectories.pop(trajectory_id)
        leaving.trajectory_ids.append(trajectory_id)
        leaving.entries += trajectory_entry(trajectory_id, job.trajectory_specs.pop(trajectory_id), closed.end)
        if not together.group_id:
            _leave_group(state, job, closed, trajectory_id, leaving)
    if together.group_id:
        del job.groups[together.group_id]
        if (bundle := job.buffer.bundles.get((together.group_id, ""))) is not None:
            job.buffer.make_whole(bundle)
            state.timers.drop(("group", (job.request.job_id, together.group_id)))
        leaving.entries += group_entry(together.group_id)


def _leave_group(
    state: SchedulerState, job: Job, closed: ClosedTrajectory, trajectory_id: str, leaving: _Leaving
) -> None:
    """One that was lost may go alone. A group of which nothing else is left goes with it."""
    group = job.groups.get(closed.group_id)
    if group is None or not group.goes_alone(trajectory_id):
        return
    del group.lost[trajectory_id]
    if group.members:
        return
    if group.lost:
        if group.cancelled:
            # The row that said so is deleted.
            state.persist(GroupCancelled(job.request.job_id, next(iter(group.lost))))
        return
    if group.closed is not None:
        group.closed.reopened = True
    del job.groups[closed.group_id]
    leaving.entries += group_entry(closed.group_id)
