"""Handles deadlines that are due. A timer that fired too early for its purpose is armed again."""

from __future__ import annotations

from functools import partial
from typing import Final

from callsheet.scheduler.core.fleet.loss import lose_awaited
from callsheet.scheduler.core.fleet.membership import leave_when_over, lose_manager
from callsheet.scheduler.core.hosted.rollouts import rollout_due
from callsheet.scheduler.core.jobs.batches import batch_due
from callsheet.scheduler.core.jobs.retention import retention_due
from callsheet.scheduler.core.state.entities import Action, Attempt, LastAttempt
from callsheet.scheduler.core.state.scheduler_state import SchedulerState, TimerKey
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import Cancellation, Expiry
from callsheet.scheduler.core.words.model import ActionKey, ActionState, FailureKind, TimeoutKind, Token
from callsheet.scheduler.core.work.adoption import drop_orphan
from callsheet.scheduler.core.work.cancel import group_due
from callsheet.scheduler.core.work.job_expiry import idle_due, job_due
from callsheet.scheduler.core.work.lifecycle import (
    advance_line,
    arm_attempt,
    attempt_deadline,
    detach_attempt,
    fail_or_retry,
    finish,
    stop_attempt,
)
from callsheet.scheduler.core.work.servability import returns_over
from callsheet.scheduler.core.work.trajectories import trajectory_due

TIMED_OUT = events.AttemptFailed(
    FailureKind.TIMEOUT,
    "start_to_close",
    "the execution timeout ran out and the manager did not end the attempt",
    timeout=TimeoutKind.START_TO_CLOSE,
)
SILENT = events.AttemptFailed(
    FailureKind.INFRA, "heartbeat", "the attempt gave no sign of life", timeout=TimeoutKind.HEARTBEAT
)

MAX_DUE: Final = 256
"""Deadlines that are handled at a time."""
_DUE: Final = ("due", "")


def on_timer(state: SchedulerState, event: events.TimerFired, now: float) -> None:
    """Handles deadlines that have come, in parts: of more than may be, the others are still due afterwards."""
    if _DUE not in state.chores:
        state.chores.add(_DUE, [partial(_is_due, state, key) for key in state.timers.pop_due(now, MAX_DUE)])


def _is_due(state: SchedulerState, key: TimerKey, now: float) -> None:
    if state.timers.get(key) is not None:
        return  # It was set anew while this one waited for its turn.
    match key:
        case ("action", ActionKey() as action_key):
            _action_due(state, action_key, now)
        case ("backoff", ActionKey() as action_key):
            _backoff_over(state, action_key, now)
        case ("orphan", ActionKey() as action_key):
            drop_orphan(state, action_key)
        case ("attempt", Token() as token):
            attempt = state.attempts.get(token)
            if attempt is not None:
                _attempt_due(state, attempt, now)
        case ("trajectory", (str() as job_id, str() as trajectory_id)):
            trajectory_due(state, job_id, trajectory_id, now)
        case ("batch", (str() as job_id, str() as batch_id)):
            batch_due(state, job_id, batch_id, now)
        case ("group", (str() as job_id, str() as group_id)):
            group_due(state, job_id, group_id, now)
        case ("job", str() as job_id):
            job_due(state, job_id, now)
        case ("idle", str() as job_id):
            idle_due(state, job_id, now)
        case ("retention", ""):
            retention_due(state, now)
        case ("returns", ""):
            returns_over(state)
        case ("rollout", str() as service):
            rollout_due(state, service, now)
        case ("manager", str() as manager_id):
            _manager_due(state, manager_id, now)
        case ("drain", str() as manager_id):
            if manager_id in state.managers:
                leave_when_over(state, state.managers[manager_id], now)


def _action_due(state: SchedulerState, key: ActionKey, now: float) -> None:
    action = state.find_action(key)
    if not isinstance(action, Action):
        return
    timeouts = action.request.timeouts
    close_by = action.deadline(timeouts.schedule_to_close)
    if now >= close_by:
        _expire(state, action, TimeoutKind.SCHEDULE_TO_CLOSE, now)
    elif action.attempts == 0 and now >= action.deadline(timeouts.schedule_to_start):
        _expire(state, action, TimeoutKind.SCHEDULE_TO_START, now)
    else:
        state.timers.set(("action", key), close_by)
        if action.attempt is not None:
            arm_attempt(state, action.attempt)


def _expire(state: SchedulerState, action: Action, timeout: TimeoutKind, now: float) -> None:
    if action.attempt is None:
        finish(state, action, Expiry(timeout), now)
    else:
        action.verdict = action.verdict or Expiry(timeout)
        stop_attempt(state, action.attempt, f"{timeout.name.lower()} ran out", now)


def _backoff_over(state: SchedulerState, key: ActionKey, now: float) -> None:
    action = state.find_action(key)
    if not isinstance(action, Action) or action.state is not ActionState.QUEUED or action.ready_ticket:
        return
    action.backoff_until = 0.0
    if action.request.in_sandbox and action.trajectory is not None:
        advance_line(state, action.trajectory, now)
    else:
        state.ready.add(action)


def _attempt_due(state: SchedulerState, attempt: Attempt, now: float) -> None:
    action = attempt.action
    if action.attempt is not attempt:
        return
    if attempt.cancel_sent:
        _force(state, action, attempt, now)
        return
    deadline = attempt_deadline(state, attempt)
    if now < deadline:
        state.timers.set(("attempt", attempt.token), deadline)
        return
    heartbeat = action.request.timeouts.heartbeat
    if heartbeat and now >= attempt.last_progress + heartbeat:
        detach_attempt(state, action, attempt, "it gave no sign of life", now)
        fail_or_retry(state, action, SILENT, now, LastAttempt(attempt))
    else:
        action.verdict = TIMED_OUT
        stop_attempt(state, attempt, TIMED_OUT.message, now)


def _force(state: SchedulerState, action: Action, attempt: Attempt, now: float) -> None:
    """The manager was told to stop the attempt and did not: the action gets its outcome without it."""
    verdict = action.verdict or Cancellation(action.cancel_reason or "stopped")
    detach_attempt(state, action, attempt, "the manager did not stop it in time", now)
    finish(state, action, verdict, now, LastAttempt(attempt))


def _manager_due(state: SchedulerState, manager_id: str, now: float) -> None:
    manager = state.managers.get(manager_id)
    if manager is None:
        lose_awaited(state, manager_id, now)
    elif now >= manager.last_seen + state.settings.manager_lease:
        lose_manager(state, manager, now)
    else:
        state.timers.set(("manager", manager_id), manager.last_seen + state.settings.manager_lease)
