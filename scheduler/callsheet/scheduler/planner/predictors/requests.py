"""Turns the core's requests and the ends of their attempts into questions and observations for predictors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from callsheet.scheduler.core.state.entities import Attempt
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.events import AttemptEnded, AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.words.model import (
    ActionRequest,
    Demand,
    FailureKind,
    ResourceDemand,
    SpeedUp,
    TimeoutKind,
)
from callsheet.scheduler.planner.predictors.predictors import Predictors
from callsheet.scheduler.planner.predictors.values import ObservedRun, Prediction, PredictionKey

BYTES_PER_MB = 1 << 20


def key_of(request: ActionRequest) -> PredictionKey:
    """Returns the key by which predictors know an action."""
    return PredictionKey(request.key.job_id, request.kind, request.label, request.task)


def predict(predictors: Predictors, request: ActionRequest) -> Prediction:
    """Returns the expected needs of an action, the client's hints included, within its timeout."""
    return predictors.predict(
        key_of(request),
        request.expected_duration,
        amdahl_hint=amdahl_hint(request.demand),
        timeout_s=request.timeouts.start_to_close,
    )


def elastic_entry(demand: Demand) -> ResourceDemand | None:
    """The resource of which more units make it faster; the first, if there are several."""
    for entry in demand.entries:
        if entry.elastic:
            return entry
    return None


def amdahl_hint(demand: Demand) -> float:
    """The parallel fraction that the demand's curve amounts to; 1 without one."""
    entry = elastic_entry(demand)
    return _told_fraction(entry.speed_up, entry.min_units, entry.max_units) if entry is not None else 1.0


def relative_units(demand: Demand, granted: Mapping[str, int]) -> float:
    """Units of the elastic resource granted, in multiples of its fewest; 1 without one."""
    entry = elastic_entry(demand)
    if entry is None:
        return 1.0
    return max(granted.get(entry.resource, entry.min_units) / max(entry.min_units, 1), 1.0)


def _told_fraction(curve: SpeedUp, least: int, most: int) -> float:
    """The fraction by which Amdahl's law has the curve's speed-up at the most units."""
    if not curve.points:
        return curve.amdahl_fraction
    ratio, gain = most / max(least, 1), curve.at(most, least)
    if ratio <= 1.0 or gain <= 0.0:
        return 1.0
    return min(max((1.0 - 1.0 / gain) / (1.0 - 1.0 / ratio), 0.0), 1.0)


def with_attempts(state: SchedulerState, ends: Sequence[AttemptEnded]) -> Iterator[tuple[Attempt, AttemptEnded]]:
    """Ends that the core has not handled yet, with their attempts; those that it does not know are left out."""
    for event in ends:
        manager = state.managers.get(event.manager_id)
        attempt = manager.attempts.get(event.token) if manager is not None else None
        if attempt is not None:
            yield attempt, event


def observation_of(attempt: Attempt, event: AttemptEnded) -> ObservedRun | None:
    """Returns the observation in the end of an attempt; None if it shows nothing of the action's needs.

    Whatever its manager measured: its execution clock ended with its timeout.
    """
    if not event.started or event.execution_s <= 0.0:
        return None
    request = attempt.action.request
    usage = event.usage
    timed_out = _timed_out(event)
    return ObservedRun(
        key_of(request),
        min(event.execution_s, request.timeouts.start_to_close),
        relative_units(request.demand, attempt.granted),
        cpu_s=_amount(usage.cpu_s) if usage is not None else 0.0,
        peak_memory_mb=_amount(usage.peak_memory_bytes / BYTES_PER_MB) if usage is not None else 0.0,
        failed=not timed_out and not _ran_to_its_end(event),
        timed_out=timed_out,
        hint_s=request.expected_duration,
        amdahl_hint=amdahl_hint(request.demand),
    )


def _timed_out(event: AttemptEnded) -> bool:
    result = event.result
    return isinstance(result, AttemptFailed) and result.timeout is TimeoutKind.START_TO_CLOSE


def _ran_to_its_end(event: AttemptEnded) -> bool:
    """Returns whether its time is its own: it succeeded, or the policy's own code failed."""
    result = event.result
    if isinstance(result, AttemptFailed):
        return result.kind is FailureKind.POLICY
    return isinstance(result, AttemptSucceeded)


def _amount(value: float) -> float:
    """Returns a manager's measurement; 0, which means not measured, if it is no amount."""
    return value if math.isfinite(value) and value > 0.0 else 0.0
