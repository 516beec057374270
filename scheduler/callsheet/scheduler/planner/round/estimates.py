"""Estimates of the planner: the expected durations and sizes of actions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import log2

from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.words.model import ActionKind, ActionRequest, SpeedUp
from callsheet.scheduler.core.words.plan import GrantPrediction
from callsheet.scheduler.planner.fleet.pools import USUAL_USE
from callsheet.scheduler.planner.predictors import Prediction, PredictionKey, Predictors
from callsheet.scheduler.planner.predictors.requests import amdahl_hint, predict
from callsheet.scheduler.planner.question.price import DEFAULT_DURATION
from callsheet.scheduler.planner.round.options import Estimate

LEAST_DURATION_S = 1e-3
# Size classes to an octave of duration.
SIZES_PER_OCTAVE = 2
MOST_ANSWERED = 1024


def size_of_duration(seconds: float) -> int:
    """The size class of a duration."""
    return round(SIZES_PER_OCTAVE * log2(max(seconds, LEAST_DURATION_S)))


def duration_of_size(size: int) -> float:
    """Duration in the middle of a size class."""
    return float(2.0 ** (size / SIZES_PER_OCTAVE))


class Estimates:
    """Asks the predictors; without any, actions take what their clients said, or a second."""

    def __init__(self, predictors: Predictors | None = None, *, sorted_by_size: bool = True) -> None:
        """Starts with nothing asked.

        Args:
            predictors: Who is asked.
            sorted_by_size: Whether classes have sizes; where nobody sorted, one takes as long as its label does.
        """
        self._predictors = predictors
        self._sorted_by_size = sorted_by_size
        # What was answered since the predictors last learned: alike actions come in batches, and each is asked about
        # when it becomes ready and when it is placed.
        self._answered: dict[Hashable, Prediction] = {}
        self._answered_at = -1

    def of_request(self, request: ActionRequest) -> Prediction | None:
        """The prediction for one action; None without predictors."""
        if self._predictors is None:
            return None
        if self._answered_at != self._predictors.revision or len(self._answered) >= MOST_ANSWERED:
            self._answered_at = self._predictors.revision
            self._answered.clear()
        likeness = (
            request.key.job_id,
            request.kind,
            request.label,
            request.task,
            request.expected_duration,
            request.demand,
            request.timeouts.start_to_close,
        )
        known = self._answered.get(likeness)
        if known is None:
            known = self._answered[likeness] = predict(self._predictors, request)
        return known

    def duration(self, request: ActionRequest) -> float:
        """Seconds at the fewest units."""
        prediction = self.of_request(request)
        return prediction.duration_s if prediction is not None else request.expected_duration or DEFAULT_DURATION

    def of_grant(self, request: ActionRequest, units: Mapping[str, int]) -> GrantPrediction | None:
        """Returns the expectation for a manager about an attempt with these units; None without predictors."""
        prediction = self.of_request(request)
        if prediction is None:
            return None
        gain = 1.0
        for entry in request.demand.entries:
            if entry.elastic and units.get(entry.resource, 0) > entry.min_units:
                curve = entry.speed_up if entry.speed_up.points else SpeedUp(prediction.amdahl_fraction)
                gain *= curve.at(units[entry.resource], entry.min_units)
        use = min(prediction.use * gain, request.demand.most_cores())
        return GrantPrediction(prediction.duration_s / gain, use)

    def size_of(self, action: Action) -> int:
        """The size class of an action; see `ReadyQueue.size_of`."""
        return size_of_duration(self.duration(action.request))

    def of_class(self, key: ClassKey) -> Estimate:
        """Returns the expectation for a member of a class: its size gives the time, its label the use of cores."""
        duration = duration_of_size(key.size)
        if self._predictors is None:
            return Estimate(duration, USUAL_USE)
        like = PredictionKey(key.job, key.kind, key.label, "")
        prediction = self._predictors.predict(like, amdahl_hint=amdahl_hint(key.demand))
        duration = duration if self._sorted_by_size else prediction.duration_s
        return Estimate(duration, prediction.use, prediction.amdahl_fraction)

    def cores_of_job(self, job: str) -> float:
        """Cores that a command of a job's trajectories uses; what weighs trajectories against each other."""
        command = self._command_of(job)
        return max(command.use, 0.01) if command is not None else USUAL_USE

    def command_of_job(self, job: str) -> tuple[float, float] | None:
        """(seconds alone, core-seconds) of a command of a job's trajectories; None without predictors."""
        command = self._command_of(job)
        return (command.duration_s, command.duration_s * command.use) if command is not None else None

    def _command_of(self, job: str) -> Prediction | None:
        if self._predictors is None:
            return None
        return self._predictors.predict(PredictionKey(job, ActionKind.ENV_STEP, "", ""))
