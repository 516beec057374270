"""Service time, CPU use, peak memory and speed-up of actions, learned online.

Log-seconds are normal around a mean that is shrunk level by level: kind, label, label in a job, task of that label. At
each level what was seen n times weighs n / (n + strength), and the level above it the rest. The variance is that of the
errors of earlier predictions, shrunk in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.predictors.log_normal import bounded_mean, censored, quantile
from callsheet.scheduler.planner.predictors.nodes import Branch, Changes, Nodes, Path, RunningMean, SavedNode
from callsheet.scheduler.planner.predictors.values import ObservedRun, Prediction, PredictionKey

# Of a level against what was seen below it, in runs: of the prior, the kind, the label, and the label in a job. They
# were fitted to command durations of public traces of coding agents.
STRENGTHS = (1.0, 0.7, 4.0, 1.0)
TASK_STRENGTH = STRENGTHS[-1]
# Means reach back over about so many runs: of a task, of errors, and of all else.
TASK_MEMORY = 10.0
ERROR_MEMORY = 200.0
LABEL_MEMORY = 1000.0
# Variance of log-seconds, and of log-megabytes, of a kind that nothing is known of.
PRIOR_VARIANCE = 2.5
PRIOR_MEMORY_VARIANCE = 0.04
# A predicted peak is exceeded with the probability that a normal variable is above it: one in twenty.
PEAK_QUANTILE = 1.645
# Assumed error of a client's hint in log-seconds, and of its Amdahl fraction.
HINT_VARIANCE = 0.7**2
AMDAHL_VARIANCE = 0.3**2
# What was learned of an Amdahl fraction fades over about so many runs.
AMDAHL_MEMORY = 500.0
# Bound of a predicted mean where no timeout is given.
LONGEST_S = 3600.0
# No clock of a manager tells shorter times apart.
SHORTEST_S = 1e-3
LEAST_MEMORY_MB = 1.0
MAX_TASKS = 20_000
MAX_LABELS = 2_000
_LEAST_SD, _MOST_SD = 0.05, 3.0
# An error of more standard deviations counts as this far.
_OUTLIER = 3.0
# A run longer than its median says more of the use, but one long run does not drown all others.
_MOST_USE_WEIGHT = 4.0
_MOST_USE = 1024.0
# A censored run that tells less is left out.
_LEAST_WEIGHT = 1e-3


class Prior(NamedTuple):
    """Assumptions about a kind before any action of it ran.

    Attributes:
        duration_s: Median execution time.
        use: Cores used while running.
        peak_memory_mb: Median peak.
    """

    duration_s: float
    use: float
    peak_memory_mb: float


PRIORS: Mapping[ActionKind, Prior] = MappingProxyType(
    {
        ActionKind.GENERATE: Prior(5.0, 0.1, 64.0),
        ActionKind.ENV_RESET: Prior(5.0, 0.5, 256.0),
        ActionKind.ENV_STEP: Prior(0.3, 0.65, 256.0),
        ActionKind.TOOL_CALL: Prior(1.5, 0.05, 64.0),
        ActionKind.REWARD: Prior(5.0, 0.85, 256.0),
    }
)


class Predictors:
    """See the module's docstring. Not for several threads.

    Predicting changes nothing; `observe` takes constant time, and the number of nodes is bounded.

    Attributes:
        nodes: What was seen.
        revision: Grows whenever predictions may have become others.
    """

    def __init__(self, *, max_tasks: int = MAX_TASKS, max_labels: int = MAX_LABELS) -> None:
        """Starts with nothing seen.

        Args:
            max_tasks: Tasks remembered; beyond, the one not seen for longest is forgotten, and its label stays.
            max_labels: Labels remembered, in all jobs together.
        """
        self.nodes = Nodes(max_tasks=max_tasks, max_labels=max_labels)
        self.revision = 0

    def predict(
        self, key: PredictionKey, hint_s: float = 0.0, *, amdahl_hint: float = 1.0, timeout_s: float = math.inf
    ) -> Prediction:
        """Returns the expected needs of an action.

        Args:
            key: What is known of it.
            hint_s: Seconds at the fewest units by the client's word; 0 if it says nothing.
            amdahl_hint: Parallel fraction by the client's word.
            timeout_s: Where its execution clock ends it: the mean is bounded by it.
        """
        branch = self.nodes.find(key)
        log_mean, variance = _log_seconds(key.kind, branch)
        if hint_s > 0.0:
            # Each is weighted by the inverse of its variance (Bates and Granger 1969).
            log_mean += variance / (variance + HINT_VARIANCE) * (math.log(hint_s) - log_mean)
            variance = min(variance, HINT_VARIANCE)
        log_sd = min(max(math.sqrt(variance), _LEAST_SD), _MOST_SD)
        limit = min(timeout_s, LONGEST_S)
        log_peak, peak_variance = _log_peak(key.kind, branch)
        return Prediction(
            min(bounded_mean(log_mean, log_sd, limit), limit),
            log_mean,
            log_sd,
            _shrunk(PRIORS[key.kind].use, (node.use for node in branch)),
            quantile(log_peak, min(math.sqrt(peak_variance), _MOST_SD), PEAK_QUANTILE),
            _fraction(branch, amdahl_hint),
            branch.task.duration.count,
            hint_s > 0.0 or branch.label.duration.count > 0.0,
        )

    def observe(self, observation: ObservedRun) -> None:
        """Learns from a run.

        Raises:
            ValueError: A number of the observation is not finite or negative, or it ran with less than one unit.
        """
        _check(observation)
        self.revision += 1
        branch = self.nodes.touch(observation.key)
        if observation.execution_s > 0.0:
            _learn_duration(observation, branch)
        if observation.peak_memory_mb > 0.0:
            _learn_peak(observation, branch)

    def take_changes(self, most: int) -> Changes:
        """Returns the changed nodes, which are to be saved: up to `most`, none once all were taken."""
        return self.nodes.take_changes(most)

    def restore(self, saved: Iterable[SavedNode]) -> int:
        """Continues from saved nodes; returns how many were left out because they are not what this version saves."""
        self.revision += 1
        left_out = 0
        for path, numbers in saved:
            try:
                self.nodes.put(Path(*path), numbers)
            except (TypeError, ValueError):
                left_out += 1
        return left_out


def amdahl_slowness(fraction: float, ratio: float) -> float:
    """Execution time at `ratio` times the fewest units, relative to that at the fewest."""
    return (1.0 - fraction) + fraction / ratio


def _shrunk(prior: float, levels: Iterable[RunningMean]) -> float:
    """A value shrunk from level to level."""
    for strength, seen in zip(STRENGTHS, levels, strict=False):
        prior += seen.count / (seen.count + strength) * (seen.value - prior)
    return prior


def _log_seconds(kind: ActionKind, branch: Branch) -> tuple[float, float]:
    """Mean and variance of log-seconds at the fewest units. A task's runs are too few to tell a variance."""
    mean = _shrunk(math.log(PRIORS[kind].duration_s), (node.duration for node in branch))
    return mean, _shrunk(PRIOR_VARIANCE, (node.error for node in branch[:-1]))


def _log_peak(kind: ActionKind, branch: Branch) -> tuple[float, float]:
    """Mean and variance of log-megabytes."""
    mean = _shrunk(math.log(PRIORS[kind].peak_memory_mb), (node.memory for node in branch))
    return mean, _shrunk(PRIOR_MEMORY_VARIANCE, (node.memory_error for node in branch[:-1]))


def _openness(seen: RunningMean) -> float:
    """How much a run tells of its label: a task seen often says little that is new of it."""
    return TASK_STRENGTH / (seen.count + TASK_STRENGTH)


def _clipped_square(error: float, variance: float) -> float:
    return min(error * error, _OUTLIER * _OUTLIER * variance)


def _learn_duration(observation: ObservedRun, branch: Branch) -> None:
    fraction = _fraction(branch, observation.amdahl_hint)
    slowness = amdahl_slowness(fraction, observation.units)
    log_seconds = math.log(max(observation.execution_s, SHORTEST_S)) - math.log(slowness)
    mean, variance = _log_seconds(observation.key.kind, branch)
    weight = 1.0
    if observation.censored:
        log_seconds, weight = censored(mean, max(math.sqrt(variance), _LEAST_SD), log_seconds)
        if weight < _LEAST_WEIGHT:
            return
    elif observation.cpu_s > 0.0:
        _learn_use(observation, branch, slowness, log_seconds - mean)
    task = branch.task
    _learn_speed_up(branch, fraction, (1.0 / observation.units - 1.0) / slowness, log_seconds, weight)
    worth = weight * _openness(task.duration)
    for node in branch[:-1]:
        node.error.add(_clipped_square(log_seconds - mean, variance), weight, ERROR_MEMORY)
        node.duration.add(log_seconds, worth, LABEL_MEMORY)
    task.duration.add(log_seconds, weight, TASK_MEMORY)


def _learn_speed_up(branch: Branch, used: float, slope: float, log_seconds: float, weight: float) -> None:
    """Learns the parallel fraction from a run at another width than those of its task before.

    Gauss-Newton on log-seconds: a run at `ratio` times the fewest units takes (1 - f) + f / ratio of the time. Only
    differences WITHIN a task count. Across tasks, widths follow sizes, since the planner gives large ones more.

    Args:
        branch: Whose run.
        used: The fraction by which all were brought to the fewest units.
        slope: d log(time) / d fraction at its width.
        log_seconds: At the fewest units.
        weight: How much it tells.
    """
    task = branch.task
    seen = task.duration
    apart = slope - task.slope
    if seen.count > 0.0 and apart:
        for node in (branch.label, branch.job_label):
            variance = _shrunk(PRIOR_VARIANCE, (each.error for each in branch[:-1]))
            bound = _OUTLIER * math.sqrt(variance)
            error = max(-bound, min(log_seconds - seen.value, bound))
            information = weight * seen.count / (seen.count + 1.0) * apart / variance
            fading = 1.0 - 1.0 / AMDAHL_MEMORY
            node.information = node.information * fading + information * apart
            node.pull = node.pull * fading + information * (error + apart * used)
    task.slope += weight / min(seen.count + weight, TASK_MEMORY) * apart


def _fraction(branch: Branch, hint: float) -> float:
    """The parallel fraction, with the client's as a prior; in [0, 1)."""
    node = branch.job_label if branch.job_label.information else branch.label
    prior = 1.0 / AMDAHL_VARIANCE
    return min(max((prior * hint + node.pull) / (prior + node.information), 0.0), 0.999)


def _learn_use(observation: ObservedRun, branch: Branch, slowness: float, log_error: float) -> None:
    use = min(observation.cpu_s / max(observation.execution_s, SHORTEST_S) * slowness, _MOST_USE)
    weight = min(math.exp(min(0.5 * log_error, 10.0)), _MOST_USE_WEIGHT)
    for node in branch[:-1]:
        node.use.add(use, weight, LABEL_MEMORY)
    branch.task.use.add(use, weight, TASK_MEMORY)


def _learn_peak(observation: ObservedRun, branch: Branch) -> None:
    value = math.log(max(observation.peak_memory_mb, LEAST_MEMORY_MB))
    mean, variance = _log_peak(observation.key.kind, branch)
    worth = _openness(branch.task.memory)
    for node in branch[:-1]:
        node.memory_error.add(_clipped_square(value - mean, variance), 1.0, ERROR_MEMORY)
        node.memory.add(value, worth, LABEL_MEMORY)
    branch.task.memory.add(value, 1.0, TASK_MEMORY)


def _check(observation: ObservedRun) -> None:
    for name in ("execution_s", "cpu_s", "peak_memory_mb", "hint_s"):
        value = getattr(observation, name)
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name}: must be a finite number, 0 or more (got {value!r})")
    if not 1.0 <= observation.units < math.inf:
        raise ValueError(f"units: must be a finite number, 1 or more (got {observation.units!r})")
