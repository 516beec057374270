"""From the core's requests to what predictors are asked."""

from __future__ import annotations

from collections.abc import Mapping

from callsheet.scheduler.core.model import ActionRequest, Demand, ResourceDemand, SpeedUp
from callsheet.scheduler.planner.predictors.predictors import Predictors
from callsheet.scheduler.planner.predictors.values import Prediction, PredictionKey


def key_of(request: ActionRequest) -> PredictionKey:
    """What predictors know an action by."""
    return PredictionKey(request.key.job_id, request.kind, request.label, request.task)


def predict(predictors: Predictors, request: ActionRequest) -> Prediction:
    """What an action is expected to need, the client's hints included, within its timeout."""
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
    return _fraction(entry.speed_up, entry.min_units, entry.max_units) if entry is not None else 1.0


def relative_units(demand: Demand, granted: Mapping[str, int]) -> float:
    """Units of the elastic resource granted, in multiples of its fewest; 1 without one."""
    entry = elastic_entry(demand)
    if entry is None:
        return 1.0
    return max(granted.get(entry.resource, entry.min_units) / max(entry.min_units, 1), 1.0)


def _fraction(curve: SpeedUp, least: int, most: int) -> float:
    """The fraction by which Amdahl's law has the curve's speed-up at the most units."""
    if not curve.points:
        return curve.amdahl_fraction
    ratio, gain = most / max(least, 1), curve.at(most, least)
    if ratio <= 1.0 or gain <= 0.0:
        return 1.0
    return min(max((1.0 - 1.0 / gain) / (1.0 - 1.0 / ratio), 0.0), 1.0)
