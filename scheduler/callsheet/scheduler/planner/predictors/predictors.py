"""Service time, CPU use, peak memory and speed-up of actions, learned online.

Log-seconds are normal around a mean that is shrunk level by level: kind, label, label in the job, task of that label.
Between label and task comes the task's effect, what its other labels showed: a slow test suite goes with slow installs.
How much a task's own mean weighs is learned from the variances (see `statistics.TaskMoments`); above, where there are
few members to learn it from, it is set. A shift common to all tasks of a label is followed by the label's drift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.planner.predictors.log_normal import bounded_mean, censored, quantile
from callsheet.scheduler.planner.predictors.settings import PredictorSettings
from callsheet.scheduler.planner.predictors.statistics import LabelStatistics, TaskMoments, amdahl_slowness
from callsheet.scheduler.planner.predictors.tree import Branch, Changes, RunningMean, SavedNode, Tree
from callsheet.scheduler.planner.predictors.values import ObservedRun, Prediction, PredictionKey

# No clock of a manager tells shorter times apart.
SHORTEST_S = 1e-3
LEAST_MEMORY_MB = 1.0
_LEAST_SD, _MOST_SD = 0.05, 3.0
# A run longer than its median says more of the use, but one long run does not drown all others.
_MOST_USE_WEIGHT = 4.0
_MOST_USE = 1024.0
# Of one run, in log-seconds.
_MOST_DRIFT = 2.0
# A censored run that tells less is left out.
_LEAST_WEIGHT = 1e-3
_NOTHING = RunningMean()


class _Belief(NamedTuple):
    """Log-seconds at the fewest units, and where they come from.

    Attributes:
        label_mean: What the label says, without drift.
        task_mean: The same with the task's effect.
        openness: Weight of `task_mean` in `mean`; the rest is that of the task's own runs.
    """

    mean: float
    variance: float
    label_mean: float
    task_mean: float
    openness: float


class _Run(NamedTuple):
    """What a run says: log-seconds at the fewest units without drift, its worth, and at which width it ran."""

    value: float
    weight: float
    fraction: float
    slope: float


class Predictors:
    """See the module's docstring. Not for several threads.

    Predicting changes nothing; `observe` takes constant time, and the number of nodes is bounded.

    Attributes:
        revision: Grows whenever predictions may have become others.
    """

    def __init__(self, settings: PredictorSettings | None = None) -> None:
        self.settings = settings or PredictorSettings()
        self.tree = Tree(self.settings)
        self.revision = 0

    def predict(
        self, key: PredictionKey, hint_s: float = 0.0, *, amdahl_hint: float = 1.0, timeout_s: float = math.inf
    ) -> Prediction:
        """What an action is expected to need.

        Args:
            key: What is known of it.
            hint_s: Seconds at the fewest units by the client's word; 0 if it says nothing.
            amdahl_hint: Parallel fraction by the client's word.
            timeout_s: Where its execution clock ends it: the mean is bounded by it.
        """
        branch = self.tree.find(key)
        statistics = branch.statistics
        belief = _with_hint(self._believe(key.kind, branch), statistics, hint_s)
        log_sd = min(max(math.sqrt(belief.variance), _LEAST_SD), _MOST_SD)
        limit = min(timeout_s, self.settings.longest_s)
        return Prediction(
            min(bounded_mean(belief.mean, log_sd, limit) * statistics.ratio.value, limit),
            belief.mean,
            log_sd,
            self._use(key.kind, branch),
            self._peak(key.kind, branch),
            statistics.amdahl.fraction(amdahl_hint, self.settings.amdahl_sd),
            branch.task.duration.count if branch.task is not None else 0.0,
            hint_s > 0.0 or branch.label.duration.count > 0.0,
        )

    def observe(self, observation: ObservedRun) -> None:
        """Learns from a run.

        Raises:
            ValueError: A number of the observation is not finite or negative, or it ran with less than one unit.
        """
        _check(observation)
        self.revision += 1
        key = observation.key
        branch = self.tree.touch(key)
        if observation.execution_s > 0.0:
            self._observe_duration(observation, branch)
        if observation.peak_memory_mb > 0.0:
            self._observe_memory(observation, branch)

    def take_changes(self, most: int) -> Changes:
        """What differs from what was taken before, to be saved: up to `most` nodes, none once all were taken."""
        return self.tree.take_changes(most)

    def restore(self, saved: Iterable[SavedNode]) -> int:
        """Continues from saved nodes; returns how many were left out because they are not what this version saves."""
        self.revision += 1
        left_out = 0
        for path, numbers in saved:
            try:
                self.tree.put(path, numbers)
            except (TypeError, ValueError):
                left_out += 1
        return left_out

    def _believe(self, kind: ActionKind, branch: Branch) -> _Belief:
        statistics = branch.statistics
        moments = statistics.duration
        prior = math.log(self.settings.priors[kind].duration_s)
        upper = branch.kind.duration, branch.label.duration, branch.job_label.duration
        label_mean, doubt = self._descend(prior, moments.total, *upper)
        task_mean = label_mean
        if branch.effect is not None:
            effect = branch.effect.duration
            task_mean += effect.value * effect.count / (effect.count + self.settings.task_effect_strength)
        own = branch.task.duration if branch.task is not None else _NOTHING
        mean, variance, openness = _own(task_mean, doubt, own, moments)
        return _Belief(mean + statistics.drift, variance, label_mean, task_mean, openness)

    def _descend(
        self, prior: float, total: float, kind: RunningMean, label: RunningMean, job_label: RunningMean
    ) -> tuple[float, float]:
        """Mean of a label in a job, shrunk to its parents, and the variance of that mean.

        At each level, `strength` is the variance of runs in multiples of the variance among the members' means.
        """
        settings = self.settings
        strength = settings.kind_strength
        doubt = total / (kind.count + strength)
        mean = prior + kind.count / (kind.count + strength) * (kind.value - prior)
        strength = settings.label_strength
        left = strength / (label.count + strength)
        doubt = doubt * left * left + total / (label.count + strength)
        mean += (1.0 - left) * (label.value - mean)
        strength = settings.job_strength
        left = strength / (job_label.count + strength)
        doubt = doubt * left * left + total / (job_label.count + strength)
        return mean + (1.0 - left) * (job_label.value - mean), doubt

    def _use(self, kind: ActionKind, branch: Branch) -> float:
        settings = self.settings
        use = settings.priors[kind].use
        for node, strength in (
            (branch.kind, settings.kind_strength),
            (branch.label, settings.label_strength),
            (branch.job_label, settings.job_strength),
            (branch.task, settings.task_strength),
        ):
            if node is not None:
                seen = node.use
                use += seen.count / (seen.count + strength) * (seen.value - use)
        return use

    def _peak(self, kind: ActionKind, branch: Branch) -> float:
        moments = branch.statistics.memory
        prior = math.log(self.settings.priors[kind].peak_memory_mb)
        upper = branch.kind.memory, branch.label.memory, branch.job_label.memory
        mean, doubt = self._descend(prior, moments.total, *upper)
        own = branch.task.memory if branch.task is not None else _NOTHING
        mean, variance, _ = _own(mean, doubt, own, moments)
        return quantile(mean, min(math.sqrt(variance), _MOST_SD), self.settings.memory_quantile)

    def _observe_duration(self, observation: ObservedRun, branch: Branch) -> None:
        settings, statistics = self.settings, branch.statistics
        fraction = statistics.amdahl.fraction(observation.amdahl_hint, settings.amdahl_sd)
        slowness = amdahl_slowness(fraction, observation.units)
        log_seconds = math.log(max(observation.execution_s, SHORTEST_S)) - math.log(slowness)
        belief = self._believe(observation.key.kind, branch)
        if not observation.failed:
            # A timeout counts as the time it took: the predicted mean is bounded by it too.
            statistics.ratio.observe(math.exp(min(log_seconds - belief.mean - 0.5 * belief.variance, 10.0)))
        weight = 1.0
        if observation.censored:
            log_seconds, weight = censored(belief.mean, math.sqrt(belief.variance), log_seconds)
            if weight < _LEAST_WEIGHT:
                return
        else:
            if observation.hint_s > 0.0:
                statistics.hints.observe(log_seconds - math.log(observation.hint_s))
            if observation.cpu_s > 0.0:
                self._observe_use(observation, branch, slowness, log_seconds - belief.mean)
        # The means know no drift: runs before it and after it are brought together.
        value = log_seconds - statistics.drift
        error = max(-_MOST_DRIFT, min(log_seconds - belief.mean, _MOST_DRIFT))
        statistics.drift += weight / settings.drift_memory * error
        run = _Run(value, weight, fraction, (1.0 / observation.units - 1.0) / slowness)
        self._learn_task(run, belief, branch)
        # A task seen often says little that is new of its label.
        weight *= belief.openness
        branch.job_label.duration.add(value, weight, settings.label_memory)
        branch.label.duration.add(value, weight, settings.label_memory)
        branch.kind.duration.add(value, weight, settings.label_memory)
        if branch.effect is not None:
            branch.effect.duration.add(value - belief.label_mean, weight, settings.label_memory)

    def _learn_task(self, run: _Run, belief: _Belief, branch: Branch) -> None:
        statistics, task = branch.statistics, branch.task
        moments = statistics.duration
        moments.apart(run.value - belief.task_mean, run.weight * belief.openness)
        if task is None:
            return
        seen = task.duration
        if seen.count > 0.0:
            moments.consecutive(run.value - task.previous)
            if run.slope != task.slope:
                worth = run.weight * seen.count / (seen.count + 1.0)
                apart = run.slope - task.slope
                statistics.amdahl.compare(run.fraction, apart, run.value - seen.value, worth, moments.within)
        seen.add(run.value, run.weight, self.settings.task_memory)
        task.slope += run.weight / seen.count * (run.slope - task.slope)
        task.previous = run.value

    def _observe_use(self, observation: ObservedRun, branch: Branch, slowness: float, log_error: float) -> None:
        execution_s = max(observation.execution_s, SHORTEST_S)
        use = min(observation.cpu_s / execution_s * slowness, _MOST_USE)
        weight = min(math.exp(min(0.5 * log_error, 10.0)), _MOST_USE_WEIGHT)
        most = self.settings.label_memory
        branch.kind.use.add(use, weight, most)
        branch.label.use.add(use, weight, most)
        branch.job_label.use.add(use, weight, most)
        if branch.task is not None:
            branch.task.use.add(use, weight, self.settings.task_memory)

    def _observe_memory(self, observation: ObservedRun, branch: Branch) -> None:
        value = math.log(max(observation.peak_memory_mb, LEAST_MEMORY_MB))
        moments, task, known = branch.statistics.memory, branch.task, branch.job_label.memory
        openness = 1.0 if task is None else moments.strength / (task.memory.count + moments.strength)
        if known.count > 0.0:
            moments.apart(value - known.value, openness)
        for node in (branch.kind, branch.label, branch.job_label):
            node.memory.add(value, openness, self.settings.label_memory)
        if task is None:
            return
        if task.memory.count > 0.0:
            moments.consecutive(value - task.previous_memory)
        task.memory.add(value, 1.0, self.settings.task_memory)
        task.previous_memory = value


def _own(mean: float, doubt: float, own: RunningMean, moments: TaskMoments) -> tuple[float, float, float]:
    """Mean and variance of the next run of a task whose label says `mean`, and the weight left to the label."""
    left = moments.strength / (own.count + moments.strength)
    variance = moments.within * (1.0 + 1.0 / (own.count + moments.strength)) + left * left * doubt
    return mean + (1.0 - left) * (own.value - mean), variance, left


def _with_hint(belief: _Belief, statistics: LabelStatistics, hint_s: float) -> _Belief:
    """Pools with the client's hint, each weighted by the inverse of its variance (Bates and Granger 1969)."""
    if hint_s <= 0.0:
        return belief
    hints = statistics.hints
    hinted = math.log(hint_s) + hints.bias
    share = belief.variance / (belief.variance + hints.variance)
    return belief._replace(
        mean=belief.mean + share * (hinted - belief.mean), variance=min(belief.variance, hints.variance)
    )


def _check(observation: ObservedRun) -> None:
    for name in ("execution_s", "cpu_s", "peak_memory_mb", "hint_s"):
        value = getattr(observation, name)
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name}: must be a finite number, 0 or more (got {value!r})")
    if not 1.0 <= observation.units < math.inf:
        raise ValueError(f"units: must be a finite number, 1 or more (got {observation.units!r})")
