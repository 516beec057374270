"""Cancelling: an action, a trajectory, a group or all unfinished work of a job.

One action is stopped by `lifecycle.cancel`, and a trajectory by `trajectories.abandon`; all requests come through here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from itertools import chain

from callsheet.scheduler.core.jobs.batches import GROUP_IDLE_S, member_closed
from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.state.chores import Part, open_actions
from callsheet.scheduler.core.state.entities import Action, Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.records import GroupCancelled
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.work.lifecycle import cancel
from callsheet.scheduler.core.work.over_or_unknown import closed_trajectory, unknown_action, unknown_group
from callsheet.scheduler.core.work.trajectories import abandon


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
        cancel_group(state, job, event.group_id, reason, event.reply_to)
        return
    if not event.trajectory_id:
        give_up(state, job, reason, event.reply_to)
        return
    if event.trajectory_id in job.trajectories:
        abandon(state, job, [event.trajectory_id], reason, now)
    else:
        closed_trajectory(job, event.trajectory_id)
    state.accept(event.reply_to)


def give_up(state: SchedulerState, job: Job, reason: str, reply_to: events.ReplyTo | None = None) -> None:
    """Closes all trajectories of a job that are open now as abandoned, and cancels its other actions; in parts.

    Args:
        state: The scheduler's state.
        job: An open job.
        reason: Why.
        reply_to: Who is answered once it is done.

    Raises:
        RefusedError: RESOURCE_EXHAUSTED while this is under way already.
    """

    def stop(action: Action, now: float) -> None:
        if not action.state.terminal:
            cancel(state, action, reason, now)

    key = ("cancel", job.request.job_id)
    _check_not_under_way(state, key, "job_id", job.request.job_id)
    # What comes while this is done is new work.
    trajectory_ids, actions = list(job.trajectories), open_actions(job)
    parts = chain(
        (partial(abandon, state, job, [each], reason) for each in trajectory_ids),
        (partial(stop, each) if each is not None else None for each in actions),
        _answer(state, reply_to),
    )
    state.chores.add(key, parts)


def _check_not_under_way(state: SchedulerState, key: Hashable, field: str, name: str) -> None:
    if key in state.chores:
        rule = "its work is being given up already; ask again once that is done"
        raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, field, name, rule, state.settings.full_retry_after)


def _answer(state: SchedulerState, reply_to: events.ReplyTo | None) -> Iterator[Part]:
    if reply_to is not None:
        yield lambda _: state.accept(reply_to)


def cancel_group(
    state: SchedulerState, job: Job, group_id: str, reason: str, reply_to: events.ReplyTo | None = None
) -> None:
    """Closes the open members of a group as abandoned, in parts; it takes no more.

    Args:
        state: The scheduler's state.
        job: An open job.
        group_id: A group of it.
        reason: Why.
        reply_to: Who is answered once it is done.

    Raises:
        RefusedError: NOT_FOUND if the job never had such a group; RESOURCE_EXHAUSTED while this is under way already.
    """
    group, key = job.groups.get(group_id), ("cancel", job.request.job_id, group_id)
    _check_not_under_way(state, key, "group_id", group_id)
    if group is None and not job.forgotten.has_group(group_id):
        raise unknown_group(job, group_id)
    if group is not None and not group.cancelled:
        group.cancelled = True
        first = next(iter([*group.members, *group.lost]))
        state.persist(GroupCancelled(job.request.job_id, first))
    members = list(group.members) if group is not None else []
    parts: Iterator[Part] = chain(
        (partial(abandon, state, job, [each], reason) for each in members),
        (partial(member_closed, state, job, group_id) for _ in members[:1]),
        _answer(state, reply_to),
    )
    state.chores.add(key, parts)


def group_due(state: SchedulerState, job_id: str, group_id: str, now: float) -> None:
    """Ends a group that had no open member for too long, so that what finished of it is given out."""
    job = state.jobs.get(job_id)
    group = job.groups.get(group_id) if job is not None else None
    if job is not None and group is not None and not job.has_open_members(group):
        cancel_group(state, job, group_id, f"none of its members was open for {GROUP_IDLE_S:.0f} s")
