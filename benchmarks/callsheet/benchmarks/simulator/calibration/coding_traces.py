"""Public traces of coding agents: 640 trajectories on few cores, against another simulator's figures.

That one was a fluid simulation of the same 32 trajectories (the clean set of AgentCgroup's raw data, arXiv 2602.09345),
resampled to 640, written before this simulator and without its code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

from callsheet.benchmarks.simulator import traces, workloads
from callsheet.benchmarks.simulator.calibration.table import Experiment, Row, row
from callsheet.benchmarks.simulator.measurements import Measurements
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.scenario import Mode, Scenario
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.workloads.distributions import Quantiles
from callsheet.benchmarks.simulator.workloads.parameters import NO_REWARD, Workload

_TRAJECTORIES = 640
_SEEDS = (1, 2)

# Seconds of a turn's generation in the clean set, sub-agents included: quantiles, rounded to two digits.
_GENERATION = Quantiles(
    (
        (0.005, 0.87),
        (0.05, 1.1),
        (0.25, 1.4),
        (0.5, 1.9),
        (0.75, 3.0),
        (0.9, 5.1),
        (0.95, 7.6),
        (0.98, 14.0),
        (0.99, 51.0),
        (0.995, 86.0),
    )
)

# Mean, p99 and p99.9 of ACT in s, then the step (one-shot) or the longest wait (sustained) in s.
_OTHER_SIMULATOR = {
    (Mode.ONESHOT, 32, "tangram"): (15.1, 47.0, 135.0, 1603.0),
    (Mode.ONESHOT, 32, "os_sharing"): (4.4, 84.0, 302.0, 1076.0),
    (Mode.ONESHOT, 50, "tangram"): (7.9, 29.0, 125.0, 1225.0),
    (Mode.ONESHOT, 50, "os_sharing"): (2.2, 37.0, 141.0, 958.0),
    (Mode.ONESHOT, 50, "callsheet"): (1.8, 30.0, 202.0, 927.0),
    (Mode.SUSTAINED, 65, "tangram"): (6.8, 25.0, 121.0, 24.0),
    (Mode.SUSTAINED, 65, "os_sharing"): (2.55, 39.0, 234.0, 486.0),
}


def coding_traces(trace: Path | None = None) -> Experiment:
    """ACT of exclusive cores first come (the tangram policy: commands are serial), of OS sharing, and of callsheet.

    Args:
        trace: The clean trajectories in our trace format; None draws from the distributions fitted to them.
    """
    rows: list[Row] = []
    for (mode, cores, policy), (mean, p99, p999, last) in _OTHER_SIMULATOR.items():
        runs = [simulate(_scenario(trace, mode, cores, seed), POLICIES[policy]) for seed in _SEEDS]
        what = f"{mode.value}, {cores} cores, {policy}"
        rows += [
            row(f"{what}: mean ACT, s", mean, fmean(run.act_mean_s for run in runs)),
            row(f"{what}: p99, s", p99, fmean(run.act_percentile_s(99.0) for run in runs)),
            row(f"{what}: p99.9, s", p999, fmean(run.act_percentile_s(99.9) for run in runs)),
            row(f"{what}: {_last_name(mode)}, s", last, fmean(_last_s(run) for run in runs)),
        ]
    drawn = "drawn from the distributions fitted to them" if trace is None else "replayed"
    return Experiment(
        name=f"{_TRAJECTORIES} trajectories of public coding traces on few cores",
        source="a fluid simulation of the 32 clean trajectories of AgentCgroup's raw data, resampled",
        assumptions=f"trajectories {drawn}; no rewards; means over {len(_SEEDS)} seeds",
        fitted=(),
        rows=tuple(rows),
    )


def _last_name(mode: Mode) -> str:
    return "longest wait" if mode is Mode.SUSTAINED else "step"


def _last_s(measured: Measurements) -> float:
    return measured.wait_max_s if measured.mode is Mode.SUSTAINED else measured.step_s


def _scenario(trace: Path | None, mode: Mode, cores: int, seed: int) -> Scenario:
    if trace is not None:
        return traces.scenario(trace, "coding", mode=mode, trajectories=_TRAJECTORIES, seed=seed, cores=cores)
    return workloads.scenario(
        _like_the_traces(), mode=mode, trajectories=_TRAJECTORIES, seed=seed, cores=cores, reward_mix=NO_REWARD
    )


def _like_the_traces() -> Workload:
    """The coding workload with the generation times of the clean trajectories alone."""
    coding = workloads.load("coding")
    (job,) = coding.jobs
    (profile,) = job.profiles
    generation = replace(profile.generation, seconds=_GENERATION)
    return replace(coding, jobs=(replace(job, profiles=(replace(profile, generation=generation),)),))
