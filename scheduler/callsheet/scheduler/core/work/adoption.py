"""Attempts that outlived a stream or a scheduler, and their way back to their actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from callsheet.scheduler.core.state.entities import Action, Attempt, Job, Manager
from callsheet.scheduler.core.state.orphans import Orphan
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Stranger
from callsheet.scheduler.core.state.transitions import ADOPTED, STARTED
from callsheet.scheduler.core.words.commands import AcknowledgeEnd, CancelAttempt, ReleaseSandbox, ResizeAttempt
from callsheet.scheduler.core.words.events import AttemptEnded, AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.words.model import ActionKey, ActionRequest, ActionState, FailureKind, Token
from callsheet.scheduler.core.words.records import ActionDispatched
from callsheet.scheduler.core.words.registration import RunningAttempt, SandboxRef
from callsheet.scheduler.core.work.admission import admit
from callsheet.scheduler.core.work.lifecycle import arm_attempt, await_turn
from callsheet.scheduler.core.work.resizing import note_booked
from callsheet.scheduler.core.work.servability import service_of

_NO_ROOM: Final = AttemptFailed(
    FailureKind.INFRA, "result_dropped", "the result came before the submit came again, and there was no room for it"
)


def adopt_running(state: SchedulerState, manager: Manager, running: RunningAttempt, now: float) -> None:
    """Takes over an attempt that a manager says it runs, if that is its own."""
    attempt = state.attempts.get(running.token)
    if attempt is not None and (attempt.manager_id, attempt.action.key) == (manager.manager_id, running.key):
        if attempt.manager is not manager:
            book_attempt(attempt, manager, running.resources, running.cores)
            note_booked(state, attempt)
        if running.execution_s is not None:
            attempt.clock_s, attempt.clock_at = running.execution_s, now
        _mark_alive(state, attempt, running.started, now)
        _repeat_commands(state, manager, attempt, running)
        return
    action = state.find_action(running.key)
    orphan = Orphan(manager.manager_id, running)
    if isinstance(action, Action) and waits_for(state, manager, action, running.token, running.body_hash):
        adopt_orphan(state, action, orphan, now)
        return
    # Until it has ended, nobody else gets what it holds.
    release_stranger(manager, running.token)
    booked = {resource: units for resource, units in running.resources.items() if resource not in manager.pool}
    manager.strangers[running.token] = Stranger(*manager.node.take_existing(booked, running.cores))
    if action is None:
        _keep_orphan(state, orphan, now)
    elif manager.session is not None:
        state.emit(CancelAttempt(manager.session, running.token, "another attempt has taken its place"))


def release_stranger(manager: Manager, token: Token) -> None:
    """Gives back what was booked for an attempt that the core did not know, if anything was."""
    stranger = manager.strangers.pop(token, None)
    if stranger is not None:
        manager.node.give_back(stranger.units, stranger.cores)


def waits_for(state: SchedulerState, manager: Manager, action: Action, token: Token, body_hash: bytes) -> bool:
    """Returns whether an attempt that the core does not know may be this action's attempt.

    The action must have no attempt, and its body must be the same. A manager that knows the body of another's action
    could claim that action. So the manager must be one to which the scheduler could have given the action, by a token
    that exists.
    """
    request, trajectory = action.request, action.trajectory
    waits = action.state is ActionState.QUEUED and action.attempt is None
    given = token <= state.newest_token() and service_of(manager, request.kind, request.service) is not None
    elsewhere = (
        request.needs_sandbox and trajectory is not None and trajectory.manager_id not in ("", manager.manager_id)
    )
    return waits and given and not elsewhere and request.body_hash == body_hash and is_of(action.job, token)


def is_of(job: Job, token: Token) -> bool:
    """Returns whether an attempt belongs to this job, and not to a closed job that had the same id before."""
    return token > job.begun_after


def adoptable_orphan(state: SchedulerState, job: Job, request: ActionRequest) -> Orphan | None:
    """The orphan that becomes the attempt of a new action, if there is one; one of a former job is given up."""
    orphan = state.orphans.get(request.key)
    if orphan is not None and not is_of(job, orphan.running.token):
        drop_orphan(state, request.key)
        return None
    return orphan if orphan is not None and orphan.running.body_hash == request.body_hash else None


def book_attempt(attempt: Attempt, manager: Manager, units: dict[str, int], cores: tuple[int, ...]) -> None:
    """Books an attempt that is already running on its manager."""
    request = attempt.action.request
    service = service_of(manager, request.kind, request.service)
    name = service.description.name if service is not None else next(iter(manager.services))
    trajectory = attempt.action.trajectory
    lent = trajectory.held_cores if trajectory is not None and request.needs_sandbox else ()
    attempt.manager, attempt.service = manager, name
    attempt.lent_cores = lent
    # A service that is not there any more shares nothing; what it had then is booked.
    held = manager.node.bookable(service.booked(units) if service is not None else units)
    booked, attempt.cores = manager.node.take_existing(held, [core for core in cores if core not in lent])
    attempt.units = booked
    attempt.granted = {name: count for name, count in units.items() if name in booked or name not in held}
    manager.attempts[attempt.token] = attempt
    offered = manager.services[name]
    offered.busy += 1
    if offered.description.kv_tokens and request.generation is not None:
        # What it was expected to hold is not known any more.
        attempt.kv_tokens = request.generation.most_tokens
        offered.kv_booked += attempt.kv_tokens


def adopt_orphan(state: SchedulerState, action: Action, orphan: Orphan, now: float) -> None:
    """Makes an orphan the current attempt of its action. If it has ended, handling its end comes next.

    The journal is told, as of a dispatch: a cancel that is acknowledged from now on is for this attempt.
    """
    take_orphan(state, action.key)
    manager = state.managers.get(orphan.manager_id)
    if manager is None:
        await_turn(state, action, now)
        return
    running = orphan.running
    state.ready.remove(action)
    release_stranger(manager, running.token)
    attempt = Attempt(running.token, action, manager.manager_id, manager, "", running.attempt, now)
    # An end does not say what its grant was; the fewest units keep the books of a sandbox it made.
    units = action.request.demand.minimum() if orphan.ended is not None else running.resources
    book_attempt(attempt, manager, units, running.cores)
    note_booked(state, attempt)
    state.attempts[running.token] = attempt
    action.attempt = attempt
    state.persist(
        ActionDispatched(*action.key, running.attempt, *running.token, manager.manager_id, manager.incarnation)
    )
    action.attempts = max(action.attempts, running.attempt)
    action.first_dispatched_at = action.first_dispatched_at or now
    action.change(ADOPTED)
    if action.request.in_sandbox and action.trajectory is not None:
        action.trajectory.occupied = attempt
    if action.trajectory is not None:
        admit(state, action.trajectory, now)
    action.tell(now, f"adopted attempt {running.attempt} running on {manager.manager_id}")
    _mark_alive(state, attempt, running.started, now)


def _mark_alive(state: SchedulerState, attempt: Attempt, started: bool, now: float) -> None:
    attempt.last_progress = now
    if started and not attempt.started_at:
        attempt.started_at = now
        if attempt.action.attempt is attempt and attempt.action.state is ActionState.DISPATCHED:
            attempt.action.change(STARTED)
    if not attempt.cancel_sent:
        arm_attempt(state, attempt)


def _repeat_commands(state: SchedulerState, manager: Manager, attempt: Attempt, running: RunningAttempt) -> None:
    """Repeats messages that a broken stream may have swallowed."""
    if attempt.cancel_sent:
        state.emit(CancelAttempt(manager.session, attempt.token, "it was to be stopped before its stream broke"))
    cores = (*attempt.lent_cores, *attempt.cores)
    if attempt.granted != running.resources or set(cores) != set(running.cores):
        state.emit(ResizeAttempt(manager.session, attempt.token, dict(attempt.granted), cores))


def ended_orphan(manager: Manager, event: AttemptEnded, known: Orphan | None = None) -> Orphan:
    """An orphan that has ended; one that was known tells what it held."""
    before = known.running if known is not None and known.running.token == event.token else None
    units, cores = (before.resources, before.cores) if before is not None else ({}, ())
    running = RunningAttempt(event.token, event.key, event.attempt, event.started, units, cores, event.body_hash)
    return Orphan(manager.manager_id, running, event)


def keep_orphan_end(state: SchedulerState, manager: Manager, event: AttemptEnded, now: float) -> None:
    """Keeps the end of an attempt whose action nobody knows, until its submit comes again or its lease runs out."""
    known = state.orphans.get(event.key)
    others = state.orphan_bytes - (known.size if known is not None else 0)
    if others + ended_orphan(manager, event).size > state.settings.max_orphan_bytes:
        # Its action must not run again, and is told what became of the result.
        _release_made(state, manager, event)
        event = replace(event, result=_NO_ROOM)
    _keep_orphan(state, ended_orphan(manager, event, state.orphans.get(event.key)), now)


def _keep_orphan(state: SchedulerState, orphan: Orphan, now: float) -> None:
    """Keeps an orphan of an earlier scheduler; in this one no submit was lost, only a job closed.

    Of two attempts at one action the later one counts. A job whose opening was not committed has none: its dispatches
    wait for that. So one whose job is not open, or younger, is of a job that was closed.
    """
    key, token = orphan.running.key, orphan.running.token
    known, job = state.orphans.get(key), state.jobs.get(key.job_id)
    own = job is not None and is_of(job, token) and key.action_id not in job.forgotten
    if not own or token.epoch == state.epoch or (known is not None and known.running.token > token):
        _give_up(state, orphan)
        return
    if known is not None and known.running.token != token:
        _give_up(state, known)
    take_orphan(state, key)
    state.orphans[key] = orphan
    state.orphan_bytes += orphan.size
    state.timers.set(("orphan", key), now + state.settings.orphan_lease)


def take_orphan(state: SchedulerState, key: ActionKey) -> Orphan | None:
    """Takes an orphan out of those that are kept, if there is one."""
    orphan = state.orphans.pop(key, None)
    if orphan is not None:
        state.orphan_bytes -= orphan.size
        state.timers.drop(("orphan", key))
    return orphan


def drop_orphan(state: SchedulerState, key: ActionKey) -> None:
    """Gives up on an orphan: nobody submitted its action again."""
    orphan = take_orphan(state, key)
    if orphan is not None:
        _give_up(state, orphan)


def _give_up(state: SchedulerState, orphan: Orphan) -> None:
    manager = state.managers.get(orphan.manager_id)
    if manager is None or manager.session is None:
        return
    if orphan.ended is None:
        state.emit(CancelAttempt(manager.session, orphan.running.token, "its action is unknown"))
    else:
        discard_end(state, manager, orphan.ended)


def discard_end(state: SchedulerState, manager: Manager, event: AttemptEnded) -> None:
    """Acknowledges an end that changes nothing, and destroys the sandbox it may have made."""
    _release_made(state, manager, event)
    state.emit(AcknowledgeEnd(manager.session, event.token))


def _release_made(state: SchedulerState, manager: Manager, event: AttemptEnded) -> None:
    """Destroys the sandbox that an attempt made, if it is nobody's."""
    result = event.result
    if isinstance(result, AttemptSucceeded) and result.sandbox_id:
        owner = state.find_trajectory(event.key.job_id, result.trajectory_id)
        if owner is None or owner.sandbox_id != result.sandbox_id:
            ref = SandboxRef(event.key.job_id, result.trajectory_id, result.sandbox_id)
            state.emit(ReleaseSandbox(manager.session, ref))
