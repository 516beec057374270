"""The question of a planning round, made from nothing but the core's state: for forecasts and for debugging."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.model import CPU
from callsheet.scheduler.core.ready import ReadyClass
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.answers.remaining import Lives, with_returns
from callsheet.scheduler.planner.fleet.placed import PlacedActions, Running
from callsheet.scheduler.planner.fleet.pools import MILLI, Fleet
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.question.instance import PlanningInstance
from callsheet.scheduler.planner.round.competition import Servable
from callsheet.scheduler.planner.round.estimates import Estimates
from callsheet.scheduler.planner.round.snapshot import Snapshots


def question_of(
    state: SchedulerState, now: float, predictors: Predictors, lives: Lives | None = None
) -> PlanningInstance:
    """What a round would be asked, with what is expected to come back.

    Args:
        state: The core; not changed.
        now: Seconds since the epoch.
        predictors: What actions are expected to take.
        lives: How long what runs is going to run on; None asks the predictors.
    """
    sorted_by_size = any(key.size for key in state.ready.classes)
    estimates = Estimates(predictors, sorted_by_size=sorted_by_size)
    placed = _placed(state)
    fleet = Fleet()
    fleet.refresh(state, placed, estimates.cores_of_job)
    # No class is split by age, nothing is held for what waits long, and no member is left for a later round.
    snapshots = Snapshots(estimates, dispatch_cap=1 << 40, ageing=0.0, hold_after=float("inf"))
    waiting = [ready for key, ready in state.ready.classes.items() if ready.count and not key.pinned_to]
    servable = [Servable(ready, snapshots.block(ready.key, fleet, now)) for ready in waiting]
    servable = [each for each in servable if each.block.options]
    snapshot = snapshots.take(state, servable, fleet, cap=1 << 40, now=now, held=placed.held)
    resources = with_returns(snapshot.instance.resources, fleet, lives or Lives(predictors, now))
    classes = (
        replace(each, waited_s=_mean_wait_s(ready, now))
        for each, ready in zip(snapshot.instance.classes, snapshot.members, strict=True)
    )
    return replace(snapshot.instance, resources=tuple(resources), classes=tuple(classes))


def _mean_wait_s(ready: ReadyClass, now: float) -> float:
    return sum(now - action.queued_since for action in ready) / max(ready.count, 1)


def _placed(state: SchedulerState) -> PlacedActions:
    """What runs and was free to go anywhere."""
    placed = PlacedActions()
    for attempt in state.attempts.values():
        request, manager = attempt.action.request, attempt.manager
        service = manager.services.get(attempt.service) if manager is not None else None
        if manager is not None and service is not None and not request.needs_sandbox:
            expected = attempt.prediction
            shares = CPU in service.description.shared
            use = round(expected.use * MILLI) if expected is not None and shares else 0
            placed.add(manager.manager_id, attempt.action, Running.of(attempt.action.request, attempt.granted, use))
    return placed
