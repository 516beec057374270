"""Requests of operators and clients about what is already there: cancel, resize, pause, drain."""

from __future__ import annotations

from callsheet.scheduler.core import events
from callsheet.scheduler.core.commands import DrainManager, PauseAttempt
from callsheet.scheduler.core.entities import Action, Attempt, FinishedAction, Manager
from callsheet.scheduler.core.leases import open_job
from callsheet.scheduler.core.lifecycle import arm_attempt, cancel
from callsheet.scheduler.core.model import CPU, ActionKey, ActionState
from callsheet.scheduler.core.recall import unknown_action
from callsheet.scheduler.core.refusals import failed_precondition, invalid, not_found
from callsheet.scheduler.core.resizing import resize, wish_fulfilled
from callsheet.scheduler.core.state import SchedulerState


def on_cancel(state: SchedulerState, event: events.CancelRequested, now: float) -> None:
    """Cancels an action; one that has its outcome stays as it is."""
    job = state.jobs.get(event.key.job_id)
    forgotten = job is not None and event.key.action_id in job.forgotten
    action = _known(state, event.key) if not forgotten else None
    open_job(state, event.key.job_id, event.reply_to, works_at=now)
    if isinstance(action, Action):
        cancel(state, action, event.reason or "cancelled by its client", now)
    state.accept(event.reply_to)


def _known(state: SchedulerState, key: ActionKey) -> Action | FinishedAction:
    action = state.find_action(key)
    if action is None:
        raise unknown_action(state, key)
    return action


def _running(state: SchedulerState, key: ActionKey, wanted: ActionState) -> tuple[Action, Attempt, Manager]:
    action = _known(state, key)
    if isinstance(action, Action) and action.attempt is not None and action.state is wanted:
        manager = action.attempt.manager
        if manager is not None and manager.session is not None:
            return action, action.attempt, manager
    current = action.state.value
    raise failed_precondition("key", "/".join(key), f"must be {wanted.value} on a manager; it is {current}")


def on_resize(state: SchedulerState, event: events.ResizeRequested, now: float) -> None:
    """Changes the cores of a running attempt."""
    action, attempt, manager = _running(state, event.key, ActionState.RUNNING)
    entry = next((entry for entry in action.request.demand.entries if entry.resource == event.resource), None)
    if entry is None or event.resource != CPU:
        raise invalid("resource", event.resource, 'must be "cpu", and be part of the demand')
    if not max(entry.min_units, 1) <= event.units <= entry.max_units:
        rule = f"must be within the demand, {max(entry.min_units, 1)} to {entry.max_units}"
        raise invalid("units", event.units, rule)
    resize(state, attempt, manager, event.units, now)
    wish_fulfilled(state, attempt)
    state.accept(event.reply_to)


def on_pause(state: SchedulerState, event: events.PauseRequested, now: float) -> None:
    """Pauses a running attempt or resumes a paused one; its execution clock follows."""
    wanted = ActionState.RUNNING if event.paused else ActionState.PAUSED
    action, attempt, manager = _running(state, event.key, wanted)
    if event.paused:
        action.enter(ActionState.PAUSED)
        attempt.paused_since = now
    else:
        action.enter(ActionState.RUNNING)
        if attempt.clock_at:
            attempt.clock_at += now - max(attempt.clock_at, attempt.paused_since)
        attempt.paused_s, attempt.paused_since = attempt.paused_for(now), 0.0
        attempt.last_progress = now
        arm_attempt(state, attempt, now)
    action.tell(now, "paused" if event.paused else "resumed")
    state.emit(PauseAttempt(manager.session, attempt.token, event.paused))
    state.accept(event.reply_to)


def on_drain(state: SchedulerState, event: events.DrainRequested, now: float) -> None:
    """Takes a manager out of service once its attempts are over."""
    manager = state.managers.get(event.manager_id)
    if manager is None:
        raise not_found("manager_id", event.manager_id, "names no registered manager")
    manager.draining = manager.drain_asked = True
    state.fleet_changed()
    if manager.session is not None:
        state.emit(DrainManager(manager.session))
    state.accept(event.reply_to)
