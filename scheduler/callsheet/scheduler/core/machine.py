"""The state machine: events in, commands out.

What each event does stands in `work`, `jobs.batches`, `fleet.membership` and `timers`. What they share stands in
`work.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from callsheet.scheduler.core import timers
from callsheet.scheduler.core.fleet import membership
from callsheet.scheduler.core.fleet.quota_refills import next_refill
from callsheet.scheduler.core.jobs import batches, leases
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import CoreCommand, Refuse
from callsheet.scheduler.core.words.events import Event, Request
from callsheet.scheduler.core.words.refusals import MustWaitError, RefusedError
from callsheet.scheduler.core.work import attempts, cancel, submission, trajectories
from callsheet.scheduler.core.work.costs import persist_costs

LEAST_PARTS: Final = 32
"""Parts of chores that are done even if events took all the time."""

_HANDLERS: dict[type, Callable[[SchedulerState, Any, float], None]] = {
    events.JobOpenRequested: submission.on_job_open,
    events.JobCloseRequested: submission.on_job_close,
    events.JobHoldRequested: leases.on_job_hold,
    events.JobReleaseRequested: leases.on_job_release,
    events.SessionEnded: leases.on_session_ended,
    events.WorkCancelRequested: cancel.on_work_cancel,
    events.TrajectoryOpenRequested: trajectories.on_trajectory_open,
    events.TrajectoryCloseRequested: trajectories.on_trajectory_close,
    events.BatchRequested: batches.on_batch_requested,
    events.BatchMissed: batches.on_batch_missed,
    events.BatchSettled: batches.on_batch_settled,
    events.SubmitRequested: submission.on_submit,
    events.OutcomeRequested: submission.on_outcome_requested,
    events.PolicyPublished: submission.on_policy_published,
    events.CancelRequested: cancel.on_cancel,
    events.DrainRequested: membership.on_drain,
    events.HealRequested: membership.on_heal,
    events.ManagerJoined: membership.on_joined,
    events.ManagerDisconnected: membership.on_disconnected,
    events.ManagerHeartbeat: membership.on_heartbeat,
    events.ManagerDraining: membership.on_draining,
    events.SandboxLost: membership.on_sandbox_lost,
    events.AttemptStarted: attempts.on_started,
    events.AttemptProgressed: attempts.on_progressed,
    events.AttemptEnded: attempts.on_ended,
    events.PlanReady: attempts.on_plan,
    events.TimerFired: timers.on_timer,
}


def handle(state: SchedulerState, happened: Sequence[Event], now: float) -> list[CoreCommand]:
    """Applies events in order, with all that follows from each, and returns what is to be done.

    Args:
        state: The scheduler's state.
        happened: What happened, in order.
        now: Seconds since the epoch; never smaller than in an earlier call.
    """
    handled = 0
    while handled < len(happened) or state.chores:
        handled += advance(state, happened[handled:], now)
    # Restoring from the journal may have left commands of its own, which go out with the first ones.
    return state.take_commands()


def advance(
    state: SchedulerState,
    happened: Sequence[Event],
    now: float,
    most_parts: float = inf,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Applies events in order, as far as there is time, and does parts of what takes many steps.

    Args:
        state: The scheduler's state.
        happened: What happened, in order.
        now: Seconds since the epoch; never smaller than in an earlier call.
        most_parts: Of the state's chores; they begin at once, so that a small one is over with its event.
        is_over: Whether no time is left.

    Returns:
        How many events were applied: the others are to come again.
    """
    for node in state.metered_nodes.values():
        node.refill(now)
    handled = parts = 0
    for event in happened:
        try:
            _HANDLERS[type(event)](state, event, now)
        except MustWaitError:
            break
        except RefusedError as refusal:
            if not isinstance(event, Request):
                raise
            state.emit(Refuse(event.reply_to, refusal))
        handled += 1
        if state.chores:
            parts += state.chores.work_off(now, most_parts - parts, is_over)
        if is_over():
            break
    if state.chores:
        left = most_parts - parts
        parts = state.chores.work_off(now, min(left, LEAST_PARTS))
        state.chores.work_off(now, left - parts, is_over)
    if state.grown:
        persist_costs(state, now)
    return handled


def next_deadline(state: SchedulerState) -> float | None:
    """When `TimerFired` should be handled next, in seconds since the epoch; a planning round should follow."""
    due = state.timers.next()
    if not state.metered_nodes:
        return due
    refill = next_refill(state)
    return due if refill is None else refill if due is None else min(due, refill)
