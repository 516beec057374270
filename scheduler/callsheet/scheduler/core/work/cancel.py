"""Cancelling: an action, a trajectory, a group or all unfinished work of a job.

One action is stopped by `lifecycle.cancel`, and a trajectory by `trajectories.abandon`; all requests come through here.
"""

from __future__ import annotations

from callsheet.scheduler.core.jobs.batches import GROUP_IDLE_S, member_closed
from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.state.entities import Action, Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.records import GroupCancelled
from callsheet.scheduler.core.work.lifecycle import cancel
from callsheet.scheduler.core.work.trajectories import abandon, closed_trajectory, unknown_action, unknown_group


def on_cancel(state: SchedulerState, event: events.CancelRequested, now: float) -> None:
    """Cancels an action; one that has its outcome stays as it is."""
    job = state.jobs.get(event.key.job_id)
    forgotten = job is not None and event.key.action_id in job.forgotten
    action = state.find_action(event.key)
    if action is None and not forgotten:
        raise unknown_action(state, event.key)
    open_job(state, event.key.job_id, event.reply_to, works_at=now)
    if isinstance(action, Action):
        cancel(state, action, event.reason or "cancelled by its client", now)
    state.accept(event.reply_to)


def on_work_cancel(state: SchedulerState, event: events.WorkCancelRequested, now: float) -> None:
    """Gives up what is unfinished in a job, a group or a trajectory."""
    job = open_job(state, event.job_id, event.reply_to, works_at=now)
    reason = event.reason or "cancelled by its client"
    if event.group_id:
        cancel_group(state, job, event.group_id, reason, now)
    elif not event.trajectory_id:
        give_up(state, job, reason, now)
    elif event.trajectory_id in job.trajectories:
        abandon(state, job, [event.trajectory_id], reason, now)
    else:
        closed_trajectory(job, event.trajectory_id)
    state.accept(event.reply_to)


def give_up(state: SchedulerState, job: Job, reason: str, now: float) -> None:
    """Closes all open trajectories of a job as abandoned, and cancels its other actions."""
    abandon(state, job, list(job.trajectories), reason, now)
    for action in list(job.actions.values()):
        if isinstance(action, Action):
            cancel(state, action, reason, now)


def cancel_group(state: SchedulerState, job: Job, group_id: str, reason: str, now: float) -> None:
    """Closes the open members of a group as abandoned; it takes no more.

    Raises:
        RefusedError: NOT_FOUND if the job never had such a group.
    """
    group = job.groups.get(group_id)
    if group is None:
        if job.forgotten.has_group(group_id):
            return
        raise unknown_group(job, group_id)
    if not group.cancelled:
        group.cancelled = True
        first = next(iter([*group.members, *group.lost]))
        state.persist(GroupCancelled(job.request.job_id, first))
    abandon(state, job, list(group.members), reason, now)
    member_closed(state, job, group_id, now)


def group_due(state: SchedulerState, job_id: str, group_id: str, now: float) -> None:
    """Ends a group that had no open member for too long, so that what finished of it is given out."""
    job = state.jobs.get(job_id)
    group = job.groups.get(group_id) if job is not None else None
    if job is not None and group is not None and not job.has_open_members(group):
        cancel_group(state, job, group_id, f"none of its members was open for {GROUP_IDLE_S:.0f} s", now)
