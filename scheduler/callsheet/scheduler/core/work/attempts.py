"""Attempts: from a proposal to a grant, and to what the manager says became of it."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.jobs.pacing import PacingGate
from callsheet.scheduler.core.state.entities import Action, Attempt, LastAttempt, Manager
from callsheet.scheduler.core.state.ready import ReadyQueue
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.state.transitions import DISPATCHED, STARTED
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import AcknowledgeEnd, Dispatch
from callsheet.scheduler.core.words.model import ActionKind, ActionState, Demand, FailureKind
from callsheet.scheduler.core.words.plan import Assignment
from callsheet.scheduler.core.words.records import ActionDispatched
from callsheet.scheduler.core.work.admission import admit
from callsheet.scheduler.core.work.adoption import (
    adopt_orphan,
    book_attempt,
    discard_end,
    ended_orphan,
    keep_orphan_end,
    release_stranger,
    waits_for,
)
from callsheet.scheduler.core.work.costs import charge
from callsheet.scheduler.core.work.lifecycle import (
    arm_attempt,
    drop_attempt,
    drop_sandbox,
    end_unsuccessfully,
    finish,
    install_sandbox,
    note_death,
    note_held,
)
from callsheet.scheduler.core.work.resizing import change_cores, note_booked
from callsheet.scheduler.core.work.servability import by_need, service_of

# Bytes of a result that its manager may keep for a while.
SMALL_RESULT = 16_384
STOPPED = events.AttemptFailed(FailureKind.INFRA, "stopped_by_manager", "the manager ended the attempt by itself")
NO_SANDBOX = events.AttemptFailed(FailureKind.INFRA, "no_sandbox", "the manager reported a reset without its sandbox")


def on_plan(state: SchedulerState, event: events.PlanReady, now: float) -> None:
    """Admits and dispatches what a planner proposed, and changes cores, as far as the state of now allows it."""
    gates: dict[str, PacingGate] = {}
    for key in event.plan.admitted:
        trajectory = state.waiting_trajectories.get(key[0], {}).get(key[1])
        if trajectory is not None:
            gate = gates.get(key[0]) or gates.setdefault(key[0], PacingGate(state, trajectory.job))
            if gate.admits(trajectory):
                admit(state, trajectory, now)
    for assignment in event.plan.assignments:
        action = state.find_action(assignment.key)
        manager = state.managers.get(assignment.manager_id)
        if isinstance(action, Action) and action.ready_ticket and manager is not None:
            service = service_of(manager, action.request.kind, action.request.service)
            if service is not None and _admissible(state, action, manager, service, assignment):
                _dispatch(state, action, manager, service, assignment=assignment, now=now)
    for change in event.plan.core_changes:
        change_cores(state, change, now)
    if event.plan.again_at is not None:
        # Any timer that comes due brings a round with it.
        state.timers.set(("round", ""), event.plan.again_at)


def _admissible(
    state: SchedulerState, action: Action, manager: Manager, service: Service, assignment: Assignment
) -> bool:
    request = action.request
    pinned = request.needs_sandbox and action.trajectory is not None
    if not manager.takes(pinned):
        return False
    if pinned and action.trajectory is not None and action.trajectory.manager_id != manager.manager_id:
        return False
    slots = service.free_slots
    if (slots is not None and slots <= 0) or not service.holds(assignment.kv_tokens):
        return False
    units = assignment.units
    if not (within_demand(request.demand, units) and service.pool_has(units)):
        return False
    booked = _booked(state, action, manager, service, units)
    return manager.node.fits(booked) and (not manager.by_need or manager.node.could_fit(service.booked(units)))


def _booked(
    state: SchedulerState, action: Action, manager: Manager, service: Service, units: dict[str, int]
) -> dict[str, int]:
    """Returns the units that a grant takes of its node."""
    if manager.by_need:
        units = by_need(state, manager, ReadyQueue.key_of(action), units)
    return service.booked(units)


def within_demand(demand: Demand, units: dict[str, int]) -> bool:
    """Returns whether units are within a demand and name no other resource."""
    named = 0
    for entry in demand.entries:
        given = units.get(entry.resource, 0)
        if not entry.min_units <= given <= entry.max_units:
            return False
        named += entry.resource in units
    return named == len(units)


def _dispatch(
    state: SchedulerState, action: Action, manager: Manager, service: Service, *, assignment: Assignment, now: float
) -> None:
    request, trajectory, units = action.request, action.trajectory, assignment.units
    state.ready.remove(action)
    action.attempts += 1
    lent = trajectory.held_cores if trajectory is not None and request.needs_sandbox else ()
    booked = _booked(state, action, manager, service, units)
    if manager.node.quotas:
        manager.node.consume(booked)
        booked = manager.node.bookable(booked)
    attempt = Attempt(
        token=state.next_token(),
        action=action,
        manager_id=manager.manager_id,
        manager=manager,
        service=service.description.name,
        number=action.attempts,
        dispatched_at=now,
        granted=units,
        units=booked,
        cores=manager.node.take(booked),
        lent_cores=lent,
        last_progress=now,
        prediction=assignment.prediction,
        kv_tokens=assignment.kv_tokens,
    )
    service.busy += 1
    service.kv_booked += attempt.kv_tokens
    attempt.batch = service.busy
    state.attempts[attempt.token] = manager.attempts[attempt.token] = attempt
    note_booked(state, attempt)
    action.attempt = attempt
    action.change(DISPATCHED)
    action.queue_s += now - action.queued_since
    action.first_dispatched_at = action.first_dispatched_at or now
    if request.in_sandbox and trajectory is not None:
        trajectory.occupied = attempt
    version = service.weights.told.version if attempt.service in state.rollouts else None
    action.tell(now, _told_of(attempt, version, assignment.why))
    arm_attempt(state, attempt)
    key = action.key
    state.persist(ActionDispatched(*key, attempt.number, *attempt.token, manager.manager_id, manager.incarnation))
    state.emit(
        Dispatch(
            session=manager.session,
            request=request,
            token=attempt.token,
            attempt=attempt.number,
            service=attempt.service,
            resources=units,
            cores=(*lent, *attempt.cores) if lent else attempt.cores,
            start_to_close=request.timeouts.start_to_close,
            sandbox_id=trajectory.sandbox_id if trajectory is not None and request.needs_sandbox else "",
            prediction=assignment.prediction,
        )
    )


def _told_of(attempt: Attempt, version: int | None, why: str) -> str:
    """The line of the story for a dispatch."""
    on_version = f" with policy version {version}" if version is not None else ""
    return f"attempt {attempt.number} dispatched to {attempt.manager_id}{on_version}{f': {why}' if why else ''}"


def _attempt_of(state: SchedulerState, event: events.AttemptStarted | events.AttemptProgressed) -> Attempt | None:
    manager = state.managers.get(event.manager_id)
    return manager.attempts.get(event.token) if manager is not None else None


def on_started(state: SchedulerState, event: events.AttemptStarted, now: float) -> None:
    """Notes that an attempt began."""
    attempt = _attempt_of(state, event)
    if attempt is None:
        return
    state.managers[event.manager_id].last_seen = now
    attempt.last_progress = now
    attempt.started_at = attempt.started_at or now
    action = attempt.action
    if action.attempt is attempt and action.state is ActionState.DISPATCHED:
        action.change(STARTED)
        action.tell(now, f"attempt {attempt.number} started")


def on_progressed(state: SchedulerState, event: events.AttemptProgressed, now: float) -> None:
    """Notes that an attempt is alive, and how far its execution clock is."""
    attempt = _attempt_of(state, event)
    if attempt is not None:
        state.managers[event.manager_id].last_seen = now
        attempt.last_progress = now
        if event.execution_s is not None:
            attempt.clock_s, attempt.clock_at = event.execution_s, now


def on_ended(state: SchedulerState, event: events.AttemptEnded, now: float) -> None:
    """Turns the end of an action's current attempt into its outcome or its retry; every other end is stale."""
    manager = state.managers.get(event.manager_id)
    if manager is None:
        return
    manager.last_seen = now
    release_stranger(manager, event.token)
    attempt = state.attempts.get(event.token)
    if attempt is None or attempt.manager_id != manager.manager_id:
        _unknown_end(state, manager, event, now)
        return
    if attempt.manager is None:
        book_attempt(attempt, manager, attempt.action.request.demand.minimum(), ())
    manager.unlisted.discard(event.token)
    action = attempt.action
    charge(state, attempt, event.cost)
    if action.attempt is not attempt:
        drop_attempt(state, attempt, now)
        discard_end(state, manager, event)
        return
    _settle(state, manager, attempt, event, now)
    patient = not manager.draining and events.result_bytes(event.result) <= SMALL_RESULT
    state.emit(AcknowledgeEnd(manager.session, event.token, patient))


def _settle(state: SchedulerState, manager: Manager, attempt: Attempt, event: events.AttemptEnded, now: float) -> None:
    action = attempt.action
    result = _checked(action, event.result)
    if attempt.started_at == 0.0 and event.started:
        attempt.started_at = attempt.dispatched_at
    trajectory = action.trajectory
    # Nothing of a copy, or of an attempt that did not begin, stays in the trajectory's sandbox.
    told = event.sandbox_held_mib or (event.started and action.request.changes_sandbox)
    if told and trajectory is not None and manager.sandboxes.get(trajectory.key) is trajectory:
        note_held(state, trajectory, manager, event.sandbox_held_mib, now)
    if isinstance(result, events.AttemptSucceeded) and result.sandbox_id and trajectory is not None:
        install_sandbox(state, attempt, result.sandbox_id, event.sandbox_held_mib, now)
        abandoned = trajectory.job.trajectories.get(trajectory.request.trajectory_id) is not trajectory
        if abandoned or action.verdict is not None:
            drop_sandbox(state, trajectory, now, lost=False)
    # The next action of the sandbox must not start before this one has left the line, so the outcome comes first.
    action.attempt = None
    last = LastAttempt(attempt, event.started, event.usage, event.execution_s, event.waited_s)
    if isinstance(result, events.AttemptSucceeded) and action.verdict is None:
        finish(state, action, result, now, last)
    else:
        partial = result.result if isinstance(result, events.AttemptSucceeded) else result.partial
        stopped = replace(STOPPED, partial=partial)
        failed = note_death(state, action, result) if isinstance(result, events.AttemptFailed) else stopped
        end_unsuccessfully(state, action, failed, now, last)
    drop_attempt(state, attempt, now)


def _checked(action: Action, result: events.AttemptResult) -> events.AttemptResult:
    """A reset that ended well must name its sandbox; no other action makes one, whatever its manager says."""
    resets = action.request.kind is ActionKind.ENV_RESET
    if not isinstance(result, events.AttemptSucceeded) or resets == bool(result.sandbox_id):
        return result
    return NO_SANDBOX if resets else events.AttemptSucceeded(result.result)


def _unknown_end(state: SchedulerState, manager: Manager, event: events.AttemptEnded, now: float) -> None:
    action = state.find_action(event.key)
    if action is None:
        keep_orphan_end(state, manager, event, now)
    elif (
        isinstance(action, Action)
        and event.token.epoch < state.epoch
        and waits_for(state, manager, action, event.token, event.body_hash)
    ):
        adopt_orphan(state, action, ended_orphan(manager, event), now)
        on_ended(state, event, now)
    else:
        discard_end(state, manager, event)
