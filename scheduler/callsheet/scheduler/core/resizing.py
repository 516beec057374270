"""The cores of running attempts: changed on request, and by plans that take some from wide ones for who would wait."""

from __future__ import annotations

from callsheet.scheduler.core.commands import ResizeAttempt
from callsheet.scheduler.core.entities import Action, Attempt, Manager
from callsheet.scheduler.core.model import CPU, ActionState, Demand, ResourceDemand
from callsheet.scheduler.core.plan import CoreChange
from callsheet.scheduler.core.refusals import failed_precondition
from callsheet.scheduler.core.state import SchedulerState


def elastic_cores(demand: Demand) -> ResourceDemand | None:
    """The entry for cores of a demand, if it is elastic."""
    return next((entry for entry in demand.entries if entry.resource == CPU and entry.elastic), None)


def note_booked(state: SchedulerState, attempt: Attempt) -> None:
    """Keeps in mind an attempt that was just booked, if plans may change its cores."""
    if CPU in attempt.units and elastic_cores(attempt.action.request.demand) is not None:
        state.elastic_attempts[attempt.token] = attempt


def note_dropped(state: SchedulerState, attempt: Attempt) -> None:
    """Forgets an attempt."""
    state.elastic_attempts.pop(attempt.token, None)
    state.narrowed_attempts.pop(attempt.token, None)


def resize(state: SchedulerState, attempt: Attempt, manager: Manager, cores: int, now: float) -> None:
    """Changes the cores of a running attempt.

    Raises:
        RefusedError: There are not as many.
    """
    _rebook(attempt, manager, cores)
    attempt.granted = {**attempt.granted, CPU: cores}
    attempt.action.tell(now, f"resized to {cores} cores")
    state.emit(
        ResizeAttempt(manager.session, attempt.token, dict(attempt.granted), (*attempt.lent_cores, *attempt.cores))
    )


def wish_fulfilled(state: SchedulerState, attempt: Attempt) -> None:
    """What an attempt has now is what it is to have; nothing is given back to it later."""
    attempt.narrowed_from = 0
    state.narrowed_attempts.pop(attempt.token, None)


def change_cores(state: SchedulerState, change: CoreChange, now: float) -> None:
    """Does what a plan proposes, if the state of now allows it."""
    action = state.find_action(change.key)
    attempt = action.attempt if isinstance(action, Action) and action.state is ActionState.RUNNING else None
    if attempt is None or attempt.token not in state.elastic_attempts:
        return
    manager, entry = attempt.manager, elastic_cores(attempt.action.request.demand)
    if manager is None or manager.session is None or entry is None:
        return
    before = attempt.units.get(CPU, 0)
    within = max(entry.min_units, 1) <= change.cores <= entry.max_units
    if change.cores == before or not within or not manager.node.fits({CPU: max(change.cores - before, 0)}):
        return
    resize(state, attempt, manager, change.cores, now)
    full = max(attempt.narrowed_from, before)
    if change.cores >= full:
        wish_fulfilled(state, attempt)
    else:
        attempt.narrowed_from = full
        state.narrowed_attempts[attempt.token] = attempt


def _rebook(attempt: Attempt, manager: Manager, units: int) -> None:
    """Takes the cores that an attempt lacks of so many from its node, or gives back those it has too many."""
    service, node = manager.services[attempt.service], manager.node
    shared = service.description.shared.get(CPU)
    if shared is not None:
        if units > shared:
            rule = f"must not be more than the {shared} cores that {attempt.service} shares"
            raise failed_precondition("units", units, rule)
        return
    more = units - attempt.units.get(CPU, 0)
    if more > 0:
        if not node.fits({CPU: more}):
            rule = f"needs {more} more cores than the node has free ({node.free.get(CPU, 0)})"
            raise failed_precondition("units", units, rule)
        attempt.cores = (*attempt.cores, *node.take({CPU: more}))
    elif more < 0:
        kept, surplus = attempt.cores[:units], attempt.cores[units:]
        node.give_back({CPU: -more}, surplus)
        attempt.cores = kept
    attempt.units = {**attempt.units, CPU: units}
