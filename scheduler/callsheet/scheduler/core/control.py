"""Requests of operators and clients about what is already there: cancel, drain and heal."""

from __future__ import annotations

from math import inf

from callsheet.scheduler.core import events
from callsheet.scheduler.core.entities import Action, Manager
from callsheet.scheduler.core.fleet import leave_when_over
from callsheet.scheduler.core.leases import open_job
from callsheet.scheduler.core.lifecycle import cancel
from callsheet.scheduler.core.recall import unknown_action
from callsheet.scheduler.core.refusals import not_found
from callsheet.scheduler.core.rollouts import heal
from callsheet.scheduler.core.state import SchedulerState


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


def on_heal(state: SchedulerState, event: events.HealRequested, now: float) -> None:
    """Has the quarantined engines of a manager go back to the weights that they were started with."""
    heal(state, _registered(state, event.manager_id), now)
    state.accept(event.reply_to)


def _registered(state: SchedulerState, manager_id: str) -> Manager:
    manager = state.managers.get(manager_id)
    if manager is None:
        raise not_found("manager_id", manager_id, "names no registered manager")
    return manager


def on_drain(state: SchedulerState, event: events.DrainRequested, now: float) -> None:
    """Takes a manager out of service once its attempts are over and its last sandbox has ended, or its time is up."""
    manager = _registered(state, event.manager_id)
    if not event.dry_run:
        manager.leaves_by = now + event.deadline
        state.fleet_changed()
        state.timers.drop(("drain", manager.manager_id))
        if manager.leaves_by < inf:
            state.timers.set(("drain", manager.manager_id), manager.leaves_by)
        leave_when_over(state, manager, now)
    state.accept(event.reply_to)
