"""What is reported of a policy: its figures by seed, their means, and ratios between policies by pairs of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any, Final

from callsheet.benchmarks.measuring.statistics import rounded


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one policy. Times in seconds; an action's overhead is part of its ACT.

    Attributes:
        act_with_start_mean_s: Mean ACT of external actions if a trajectory's wait to start counts as its first action's
            queue, as it does for those who submit a pod and wait for it.
        act_mean_s: Mean ACT without that wait. Actions that a sustained run leaves unfinished count at their age.
        act_p50_s: Median.
        act_p99_s: 99th percentile.
        act_p999_s: 99.9th percentile.
        wait_max_s: Longest time an action waited for resources before and between its executions.
        start_wait_mean_s: Mean wait of a trajectory before it could begin; no part of ACT.
        step_s: End of the last trajectory; None in sustained runs.
        trajectories_per_hour: Rate of finished trajectories once the run is warm; None in one-shot runs.
        held: Core-seconds granted by core-seconds there were while the step (or the window) lasted.
        used: Core-seconds of CPU really used, likewise.
        gpu_held: GPU-seconds kept by reward models, likewise; None without such GPUs.
        gpu_used: GPU-seconds in which they computed, likewise.
        actions: External actions that ended.
    """

    act_with_start_mean_s: float
    act_mean_s: float
    act_p50_s: float
    act_p99_s: float
    act_p999_s: float
    wait_max_s: float
    start_wait_mean_s: float
    step_s: float | None
    trajectories_per_hour: float | None
    held: float | None
    used: float | None
    gpu_held: float | None
    gpu_used: float | None
    actions: int

    def as_json(self, mode_key: str) -> dict[str, float | int | None]:
        """The figures under their names; of `step_s` and `trajectories_per_hour` only the one that the mode has."""
        other = ({"step_s", "trajectories_per_hour"} - {mode_key}).pop()
        return {name: value for name, value in rounded(asdict(self)).items() if name != other}


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The external actions of one job, or of one kind, in one run, or their means over runs; times in seconds.

    Where none ended there are no times.
    """

    actions: int
    act_mean_s: float | None
    act_p50_s: float | None
    act_p99_s: float | None

    def as_json(self) -> dict[str, float | int | None]:
        """The figures under their names."""
        return rounded(asdict(self))


NO_ACTIONS: Final = JobFigures(0, None, None, None)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One run of one policy.

    Attributes:
        jobs: By job.
        kinds: By kind, those that ended.
        cpu_s: CPU seconds that the simulation took.
    """

    seed: int
    figures: Figures
    jobs: Mapping[str, JobFigures]
    kinds: Mapping[str, JobFigures]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """All runs of one policy, in the order of their seeds."""

    name: str
    by_seed: tuple[SeedResult, ...]

    def mean(self) -> Figures:
        """Every figure's mean over the seeds; the longest wait's maximum."""
        runs = [result.figures for result in self.by_seed]
        return Figures(**_means(Figures, runs) | {"wait_max_s": max(run.wait_max_s for run in runs)})

    def jobs(self) -> dict[str, JobFigures]:
        """The means of every job's figures, over the seeds in which it had trajectories."""
        return _means_by_name([run.jobs for run in self.by_seed])

    def kinds(self) -> dict[str, JobFigures]:
        """The means of every kind's figures, over the seeds in which it had actions."""
        return _means_by_name([run.kinds for run in self.by_seed])


def _means_by_name(runs: Sequence[Mapping[str, JobFigures]]) -> dict[str, JobFigures]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: JobFigures(**_means(JobFigures, [run[name] for run in runs if name in run])) for name in names}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of one policy over the same figure of another, by pairs of runs of one seed."""

    mean: float
    least: float
    greatest: float


def paired_ratio(ours: PolicyResult, others: PolicyResult, figure: str) -> Ratio | None:
    """How a figure of `ours` compares with that of `others`; None where it does not exist or is 0."""
    ratios = []
    for mine, theirs in zip(ours.by_seed, others.by_seed, strict=True):
        above, below = getattr(mine.figures, figure), getattr(theirs.figures, figure)
        if above is None or not below:
            return None
        ratios.append(above / below)
    return Ratio(fmean(ratios), min(ratios), max(ratios)) if ratios else None


def _means(kind: type[Figures | JobFigures], runs: Sequence[Figures | JobFigures]) -> dict[str, Any]:
    """The mean of every figure there is; counts are rounded to whole ones."""
    means: dict[str, Any] = {}
    for field in fields(kind):
        present = [value for run in runs if (value := getattr(run, field.name)) is not None]
        mean = fmean(present) if present else None
        means[field.name] = round(mean or 0.0) if field.name == "actions" else mean
    return means
