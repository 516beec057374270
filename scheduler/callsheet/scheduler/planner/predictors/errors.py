"""How good predictions are: each is compared with what came, before anything is learned from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callsheet.scheduler.core.model import ActionKind

# Recent means reach back over about so many runs.
_MEMORY = 1000.0


@dataclass(frozen=True, slots=True)
class KindErrors:
    """Errors of the recent predictions of a kind, in log-seconds; runs that were cut off are left out.

    Attributes:
        observations: Runs compared so far.
        mean_absolute: Mean of |log error|; 0.7 is a factor of two.
        bias: Mean log error; above 0 things took longer than predicted.
        explained: Share of the variance of log-seconds that the predictions explain; 0 until there is any variance.
        peak_exceeded: Share of measured memory peaks above the predicted ones.
    """

    observations: int
    mean_absolute: float
    bias: float
    explained: float
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
        explained = 1.0 - self.square / self.variance if self.variance > 0.0 else 0.0
        return KindErrors(self.observations, self.absolute, self.bias, explained, self.exceeded)
