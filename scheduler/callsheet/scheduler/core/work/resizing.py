"""The cores of running elastic attempts: plans take some of wide attempts for actions that would wait."""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Action, Attempt
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.commands import ResizeAttempt
from callsheet.scheduler.core.words.model import CPU, ActionState, Demand, ResourceDemand
from callsheet.scheduler.core.words.plan import CoreChange


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
    _rebook(attempt, manager.node, change.cores)
    attempt.granted = {**attempt.granted, CPU: change.cores}
    attempt.action.tell(now, f"resized to {change.cores} cores")
    cores = (*attempt.lent_cores, *attempt.cores)
    state.emit(ResizeAttempt(manager.session, attempt.token, dict(attempt.granted), cores))
    full = max(attempt.narrowed_from, before)
    if change.cores >= full:
        attempt.narrowed_from = 0
        state.narrowed_attempts.pop(attempt.token, None)
    else:
        attempt.narrowed_from = full
        state.narrowed_attempts[attempt.token] = attempt


def _rebook(attempt: Attempt, node: Node, cores: int) -> None:
    """Books the cores of a node that an attempt lacks of so many, or gives back those above that number."""
    more = cores - attempt.units[CPU]
    if more > 0:
        attempt.cores = (*attempt.cores, *node.take({CPU: more}))
    else:
        attempt.cores, surplus = attempt.cores[:cores], attempt.cores[cores:]
        node.give_back({CPU: -more}, surplus)
    attempt.units = {**attempt.units, CPU: cores}
