"""Runs a comparison from beginning to end: simulations in worker processes, and what is run beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.best_case import load_of
from callsheet.benchmarks.simulator.comparison.figures import NO_ACTIONS, Figures, JobFigures, PolicyResult, SeedResult
from callsheet.benchmarks.simulator.comparison.report import (
    ComparisonReport,
    RangeFile,
    check,
    load_ranges,
)
from callsheet.benchmarks.simulator.comparison.settings import ComparisonOptions, ComparisonSettings, ScenarioSource
from callsheet.benchmarks.simulator.measurements import Floats, Measurements, act_figures
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.scenario import Mode
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.traces import recorded_acts
from callsheet.benchmarks.simulator.worker_pool import map_in_processes


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    policy: str
    source: ScenarioSource
    seed: int


def run_all(runs: Sequence[Run], processes: int, progress: Progress) -> list[SeedResult]:
    """Runs them, `processes` at once.

    Raises:
        ValueError: A workload or trace is unknown or not valid.
    """
    return map_in_processes(run_one, runs, processes, partial(_report, progress))


def _report(progress: Progress, run: Run, result: SeedResult) -> None:
    mean = result.figures.act_mean_s
    progress(f"{run.policy}, seed {run.seed}: mean ACT {mean:.3f} s, simulated in {result.cpu_s:.1f} s of CPU")


def run_one(run: Run) -> SeedResult:
    """Draws the scenario and runs the policy on it; see `run_all`."""
    scenario = run.source.scenario(run.seed)
    began = time.process_time()
    measured = simulate(scenario, POLICIES[run.policy])
    return SeedResult(
        seed=run.seed,
        figures=figures_of(measured),
        jobs={job: _job_figures(measured.act_of_job_s(job)) for job in measured.jobs},
        kinds={name: _job_figures(act_s) for name, act_s in measured.act_by_kind_s().items()},
        cpu_s=time.process_time() - began,
    )


def figures_of(measured: Measurements) -> Figures:
    """The figures of a run."""
    sustained = measured.mode is Mode.SUSTAINED
    acts = act_figures(measured.act_s)
    per_action = len(measured.rollouts.arrived_at) / max(len(measured.act_s), 1)
    return Figures(
        **asdict(acts),
        wait_max_s=measured.wait_max_s,
        start_wait_mean_s=measured.start_wait_mean_s,
        act_with_start_mean_s=acts.act_mean_s + measured.start_wait_mean_s * per_action,
        step_s=None if sustained else measured.step_s,
        trajectories_per_hour=measured.trajectories_per_hour if sustained else None,
        held=measured.held if measured.cores else None,
        used=measured.used if measured.cores else None,
        gpu_held=measured.gpu_held if measured.gpus else None,
        gpu_used=measured.gpu_used if measured.gpus else None,
        actions=len(measured.actions),
    )


def _job_figures(act_s: Floats) -> JobFigures:
    if not len(act_s):
        return NO_ACTIONS
    p50, p99 = np.percentile(act_s, (50, 99)).tolist()
    return JobFigures(len(act_s), float(act_s.mean()), p50, p99)


def run_comparison(source: ScenarioSource, options: ComparisonOptions, progress: Progress) -> ComparisonReport:
    """Runs every policy on the scenario of every seed.

    Args:
        source: Where the scenarios come from.
        options: Which policies and seeds, what else is run, and what the figures are held to.
        progress: Told what is done.

    Raises:
        ValueError: A workload, trace, policy, range or number is not valid; the message says which and why.
        OSError: A file cannot be read.
    """
    began = time.perf_counter()
    ranges = load_ranges(options.check) if options.check is not None else None
    settings = _settings(source, options, ranges)
    first = settings.source.scenario(settings.seeds[0])
    cores = sum(nodes.count * nodes.cores for nodes in first.cluster.cpu)
    results = _by_policy(settings, progress)
    report = ComparisonReport(
        settings=settings,
        load=load_of(first),
        cores=cores,
        jobs=first.jobs,
        results=results,
    )
    if settings.source.trace is not None:
        acts = recorded_acts(settings.source.trace)
        report.recorded = {kind: _job_figures(np.array(act_s)) for kind, act_s in sorted(acts.items())}
    report.wall_s = time.perf_counter() - began
    if ranges is not None:
        report.bars = tuple(check(ranges, report.as_json()))
    return report


def _settings(source: ScenarioSource, options: ComparisonOptions, ranges: RangeFile | None) -> ComparisonSettings:
    """What is run; what is not given is as the ranges were recorded, or else all policies."""
    policies = options.policies or (tuple(POLICIES) if ranges is None else ranges.policies)
    unknown = set(policies) - set(POLICIES)
    if unknown:
        raise ValueError(f"--policy: must be one of {', '.join(POLICIES)}, got {min(unknown)!r}")
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    if ranges is not None:
        source, seeds = ranges.recorded_with(source, seeds)
    return ComparisonSettings(source, seeds, policies, options.at_once)


def _by_policy(settings: ComparisonSettings, progress: Progress) -> dict[str, PolicyResult]:
    """Runs the policies on all seeds; seed by seed, so that a scenario is drawn once for all."""
    runs = {(name, seed): Run(name, settings.source, seed) for seed in settings.seeds for name in settings.policies}
    done = dict(zip(runs, run_all(list(runs.values()), settings.processes, progress), strict=True))
    return {name: PolicyResult(name, tuple(done[name, seed] for seed in settings.seeds)) for name in settings.policies}
