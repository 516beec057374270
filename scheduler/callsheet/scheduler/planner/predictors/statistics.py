"""What is learned of a label beside its means: how much tasks differ, how units help, how good hints are, and drift."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from callsheet.scheduler.planner.predictors.settings import PredictorSettings

_MOMENTS_MEMORY = 1000.0
_LEAST_RATIO, _MOST_RATIO = 0.1, 20.0
# Half-information of the learned Amdahl fraction fades over about so many runs.
_AMDAHL_MEMORY = 500.0
_HINT_MEMORY = 100.0
_HINT_STRENGTH = 5.0
_RATIO_STRENGTH = 50.0
_MOST_TIMES = 50.0
# Outliers beyond so many standard deviations count as this far.
_OUTLIER = 3.0


@dataclass(slots=True)
class TaskMoments:
    """Variance within tasks and in total, and from them how much a task's own mean is worth.

    Empirical Bayes by moments: half the squared difference of consecutive runs of a task estimates the variance within
    tasks, also while they drift (von Neumann 1941); the squared distance of a run from its label's mean estimates the
    total. A task seen n times gets the weight n / (n + within / between).

    Attributes:
        within: Variance among runs of one task.
        total: Variance of runs of tasks not seen before.
        strength: within / (total - within), bounded.
    """

    within: float
    total: float
    within_count: float
    total_count: float
    strength: float

    @classmethod
    def assumed(cls, within: float, settings: PredictorSettings) -> TaskMoments:
        """What is assumed before the first run."""
        total = within * (1.0 + 1.0 / settings.task_strength)
        return cls(within, total, settings.moments_strength, settings.moments_strength, settings.task_strength)

    def consecutive(self, difference: float) -> None:
        """Two consecutive runs of a task differed by this much."""
        bound = _OUTLIER * math.sqrt(2.0 * self.within)
        difference = max(-bound, min(difference, bound))
        self.within_count = min(self.within_count + 1.0, _MOMENTS_MEMORY)
        self.within += (0.5 * difference * difference - self.within) / self.within_count

    def apart(self, distance: float, weight: float) -> None:
        """A run lay this far from what its label said; `weight` is less for tasks seen often."""
        bound = _OUTLIER * math.sqrt(self.total)
        distance = max(-bound, min(distance, bound))
        self.total_count = min(self.total_count + weight, _MOMENTS_MEMORY)
        self.total += weight * (distance * distance - self.total) / self.total_count
        between = max(self.total - self.within, self.within / _MOST_RATIO)
        self.strength = max(self.within / between, _LEAST_RATIO)


@dataclass(slots=True)
class AmdahlFraction:
    """The parallel fraction, from runs of the same task at different widths.

    Gauss-Newton on log-seconds: a run at `ratio` times the fewest units takes (1 - f) + f / ratio of the time. Only
    differences WITHIN a task count. Across tasks, widths follow sizes, since the planner gives large ones more.

    Attributes:
        information: Of the learned part; 0 at first.
        pull: information * fraction.
    """

    information: float = 0.0
    pull: float = 0.0

    def fraction(self, hint: float, sd: float) -> float:
        """The fraction, with the client's as a prior of standard deviation `sd`; in [0, 1)."""
        prior = 1.0 / (sd * sd)
        return min(max((prior * hint + self.pull) / (prior + self.information), 0.0), 0.999)

    def compare(self, used: float, slope_apart: float, error: float, weight: float, variance: float) -> None:
        """Learns from a run that was `error` off its task's mean.

        Args:
            used: The fraction by which both were brought to one unit.
            slope_apart: d log(time) / d fraction at its width, less the task's mean of it.
            error: Difference of log-seconds.
            weight: How much the task's mean is worth, in [0, 1).
            variance: Of log-seconds within a task.
        """
        bound = _OUTLIER * math.sqrt(variance)
        error = max(-bound, min(error, bound))
        fading = 1.0 - 1.0 / _AMDAHL_MEMORY
        information = weight * slope_apart / variance
        self.information = self.information * fading + information * slope_apart
        self.pull = self.pull * fading + information * (error + slope_apart * used)


def amdahl_slowness(fraction: float, ratio: float) -> float:
    """Execution time at `ratio` times the fewest units, relative to that at the fewest."""
    return (1.0 - fraction) + fraction / ratio


@dataclass(slots=True)
class HintQuality:
    """How far the clients' hints of a label are off, in log-seconds."""

    bias: float
    variance: float
    count: float = _HINT_STRENGTH

    def observe(self, error: float) -> None:
        """A run took exp(error) times what the hint had said."""
        self.count = min(self.count + 1.0, _HINT_MEMORY)
        off = error - self.bias
        self.bias += off / self.count
        self.variance += (min(off * off, _OUTLIER * _OUTLIER * self.variance) - self.variance) / self.count


@dataclass(slots=True)
class MeanRatio:
    """Mean seconds over what the log-normal says they are: tails of real commands are heavier than a log-normal's."""

    value: float = 1.0
    count: float = _RATIO_STRENGTH

    def observe(self, ratio: float) -> None:
        """A run took `ratio` times its predicted mean."""
        self.count = min(self.count + 1.0, _MOMENTS_MEMORY)
        self.value += (min(ratio, _MOST_TIMES) - self.value) / self.count


@dataclass(slots=True)
class LabelStatistics:
    """What all tasks of a label in a job share.

    Attributes:
        drift: Recent mean error of predictions, added to all: it follows what makes every task slower or faster.
    """

    duration: TaskMoments
    memory: TaskMoments
    amdahl: AmdahlFraction
    hints: HintQuality
    ratio: MeanRatio
    drift: float = 0.0

    @classmethod
    def assumed(cls, settings: PredictorSettings) -> LabelStatistics:
        """What is assumed before the first run."""
        return cls(
            TaskMoments.assumed(settings.within_variance, settings),
            TaskMoments.assumed(settings.memory_within_variance, settings),
            AmdahlFraction(),
            HintQuality(0.0, settings.hint_log_sd**2),
            MeanRatio(),
        )

    def for_new_job(self) -> LabelStatistics:
        """What another job's label begins with: the same, but for the drift."""
        inherited = copy.deepcopy(self)
        inherited.drift = 0.0
        return inherited

    def to_list(self) -> list[float]:
        """As numbers, for `from_list`."""
        numbers: list[float] = []
        for part in (self.duration, self.memory, self.amdahl, self.hints, self.ratio):
            numbers += [getattr(part, name) for name in part.__slots__]
        return [*numbers, self.drift]

    @classmethod
    def from_list(cls, numbers: list[float]) -> LabelStatistics:
        """From what `to_list` gave.

        Raises:
            ValueError: It is of another length.
        """
        if len(numbers) != 18:
            raise ValueError(f"statistics: must be 18 numbers (got {len(numbers)})")
        return cls(
            TaskMoments(*numbers[0:5]),
            TaskMoments(*numbers[5:10]),
            AmdahlFraction(*numbers[10:12]),
            HintQuality(*numbers[12:15]),
            MeanRatio(*numbers[15:17]),
            numbers[17],
        )
