"""How good predictions are: each is compared with what came, before anything is learned from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callsheet.scheduler.core.model import ActionKind

# Recent means reach back over about so many runs.
_MEMORY = 1000.0
# With fewer runs, or less variance of log-seconds, the first predictions, made from next to nothing, decide alone.
_FEWEST_TO_EXPLAIN = 30
_LEAST_VARIANCE = 0.1**2


@dataclass(frozen=True, slots=True)
class KindErrors:
    """Errors of the recent predictions of a kind, in log-seconds; runs that were cut off are left out.

    Attributes:
        observations: Runs compared so far.
        mean_absolute: Mean of |log error|; 0.7 is a factor of two.
        bias: Mean log error; above 0 things took longer than predicted.
        explained: Share of the variance of log-seconds that the predictions explain; 0 where they are no better than
            the mean. None for fewer than 30 runs, and where runs are so alike (a standard deviation below a tenth, so
            within 10 % of each other) that there is nothing to explain.
        peak_exceeded: Share of measured memory peaks above the predicted ones.
    """

    observations: int
    mean_absolute: float
    bias: float
    explained: float | None
    peak_exceeded: float


ErrorSummary = Mapping[ActionKind, KindErrors]


@dataclass(slots=True)
class RunningErrors:
    """Recent means for one kind."""

    observations: int = 0
    absolute: float = 0.0
    bias: float = 0.0
    square: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    peaks: float = 0.0
    exceeded: float = 0.0

    def duration(self, log_seconds: float, predicted: float) -> None:
        """Compares a run that ended by itself."""
        self.observations += 1
        gain = 1.0 / min(self.observations, _MEMORY)
        error = log_seconds - predicted
        self.absolute += gain * (abs(error) - self.absolute)
        self.bias += gain * (error - self.bias)
        self.square += gain * (error * error - self.square)
        apart = log_seconds - self.mean
        self.mean += gain * apart
        self.variance += gain * ((1.0 - gain) * apart * apart - self.variance)

    def peak(self, exceeded: bool) -> None:
        """Notes whether a measured peak was above the predicted one."""
        self.peaks = min(self.peaks + 1.0, _MEMORY)
        self.exceeded += (float(exceeded) - self.exceeded) / self.peaks

    def summary(self) -> KindErrors:
        """As of now."""
        return KindErrors(self.observations, self.absolute, self.bias, self._explained(), self.exceeded)

    def _explained(self) -> float | None:
        if self.observations < _FEWEST_TO_EXPLAIN or self.variance < _LEAST_VARIANCE:
            return None
        return max(0.0, 1.0 - self.square / self.variance)
