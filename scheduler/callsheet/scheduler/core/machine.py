"""The state machine: events in, commands out.

What each event does stands in `work`, `jobs.batches`, `fleet.membership` and `timers`. What they share stands in
`work.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from callsheet.scheduler.core import timers
from callsheet.scheduler.core.fleet import membership
from callsheet.scheduler.core.fleet.membership import next_refill
from callsheet.scheduler.core.jobs import batches
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import CoreCommand, Refuse
from callsheet.scheduler.core.words.events import Event, Request
from callsheet.scheduler.core.words.model import RefusedError
from callsheet.scheduler.core.work import attempts, cancel, submission, trajectories

_HANDLERS: dict[type, Callable[[SchedulerState, Any, float], None]] = {
    events.JobOpenRequested: submission.on_job_open,
    events.JobCloseRequested: submission.on_job_close,
    events.JobHoldRequested: submission.on_job_hold,
    events.JobReleaseRequested: submission.on_job_release,
    events.SessionEnded: submission.on_session_ended,
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
    """Applies events in order and returns what is to be done.

    Args:
        state: The scheduler's state.
        happened: What happened, in order.
        now: Seconds since the epoch; never smaller than in an earlier call.
    """
    for node in state.metered_nodes.values():
        node.refill(now)
    for event in happened:
        try:
            _HANDLERS[type(event)](state, event, now)
        except RefusedError as refusal:
            if not isinstance(event, Request):
                raise
            state.emit(Refuse(event.reply_to, refusal))
    # Restoring from the journal may have left commands of its own, which go out with the first ones.
    return state.take_commands()


def next_deadline(state: SchedulerState) -> float | None:
    """When `TimerFired` should be handled next, in seconds since the epoch; a planning round should follow."""
    due = state.timers.next()
    if not state.metered_nodes:
        return due
    refill = next_refill(state)
    return due if refill is None else refill if due is None else min(due, refill)
