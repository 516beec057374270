"""Runs a comparison from beginning to end: simulations in worker processes, and what is run beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Final

import numpy as np
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.best_case import load_of
from callsheet.benchmarks.simulator.bounds import bounds_of, least
from callsheet.benchmarks.simulator.comparison.figures import NO_ACTIONS, Figures, JobFigures, PolicyResult, SeedResult
from callsheet.benchmarks.simulator.comparison.report import (
    OURS,
    ComparisonReport,
    EqualAct,
    RangeFile,
    check,
    load_ranges,
)
from callsheet.benchmarks.simulator.comparison.settings import ComparisonOptions, ComparisonSettings, ScenarioSource
from callsheet.benchmarks.simulator.measurements import Floats, Measurements, act_figures
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.policies.callsheet import callsheet_with
from callsheet.benchmarks.simulator.policy import PolicyFactory
from callsheet.benchmarks.simulator.scenario import Mode
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings, PredictionChoice
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.traces import recorded_acts
from callsheet.benchmarks.simulator.worker_pool import map_in_processes
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.service.settings import PlannerChoice


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation.

    Attributes:
        variant: Settings of callsheet other than its defaults; None for any policy as it is.
        title: What progress calls it; empty for the policy's name.
    """

    policy: str
    source: ScenarioSource
    seed: int
    variant: CallsheetSettings | None = None
    title: str = ""


def run_all(runs: Sequence[Run], processes: int, progress: Progress) -> list[SeedResult | None]:
    """Runs them, `processes` at once; None for a policy that does not apply to its scenario.

    Raises:
        ValueError: A workload, trace or policy is unknown or not valid.
    """
    return map_in_processes(run_one, runs, processes, partial(_report, progress))


def _report(progress: Progress, run: Run, result: SeedResult | None) -> None:
    title = run.title or run.policy
    if result is None:
        progress(f"{title}: does not apply to {run.source.workload}")
    else:
        mean = result.figures.act_mean_s
        progress(f"{title}, seed {run.seed}: mean ACT {mean:.3f} s, simulated in {result.cpu_s:.1f} s of CPU")


def run_one(run: Run) -> SeedResult | None:
    """Draws the scenario and runs the policy on it; see `run_all`."""
    scenario = run.source.scenario(run.seed)
    factory = _factory(run)
    if not factory.applies(scenario):
        return None
    began = time.process_time()
    measured = simulate(scenario, factory)
    return SeedResult(
        seed=run.seed,
        figures=figures_of(measured),
        jobs={job: _job_figures(measured.act_of_job_s(job)) for job in measured.jobs},
        kinds={name: _job_figures(act_s) for name, act_s in measured.act_by_kind_s().items()},
        act_bounds=act_figures(measured.best_s),
        cpu_s=time.process_time() - began,
    )


def _factory(run: Run) -> PolicyFactory:
    factory = POLICIES.get(run.policy)
    if factory is None:
        raise ValueError(f"policy: must be one of {', '.join(POLICIES)}, got {run.policy!r}")
    return factory if run.variant is None else callsheet_with(run.variant)


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


# A search for equal ACT stops when it has the number of cores to within this part.
_PRECISION: Final = 0.03
# Figures within this factor are equal: a reservation has no overhead here, and callsheet has one for each action.
_EQUAL: Final = 1.01


def cores_for_equal_act(
    settings: ComparisonSettings, against: str, against_cores: int, progress: Progress
) -> EqualAct | None:
    """The fewest cores on which callsheet equals a policy with `against_cores` cores; None if none are.

    Mean and p99 ACT of the first seed are compared; they may be worse by a hundredth. The wait to start is no part of
    ACT, so the other policy should have cores enough that nothing waits to start.
    """
    seed = settings.seeds[0]
    (reference,) = run_all([Run(against, replace(settings.source, cores=against_cores), seed)], 1, progress)
    if reference is None:
        return None

    def good(cores: int) -> bool:
        (result,) = run_all([Run(OURS, replace(settings.source, cores=cores), seed)], 1, progress)
        return (
            result is not None
            and result.figures.act_mean_s <= _EQUAL * reference.figures.act_mean_s
            and result.figures.act_p99_s <= _EQUAL * reference.figures.act_p99_s
        )

    if not good(against_cores):
        return None
    low, high = 0, against_cores
    while high - low > max(1, _PRECISION * high):
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return EqualAct(OURS, high, against, against_cores)


ABLATIONS: Final[Mapping[str, CallsheetSettings]] = {
    "greedy in place of CP-SAT": CallsheetSettings(solver=False),
    "first come in place of the elastic planner": CallsheetSettings(planner=PlannerChoice.FIRST_COME),
    "no prediction": CallsheetSettings(prediction=PredictionChoice.OFF),
    "perfect prediction": CallsheetSettings(prediction=PredictionChoice.ORACLE),
    "no node sharing: the operating system shares": CallsheetSettings(core_sharing=CoreSharing.PLAIN),
    "no sharing at all: commands have whole cores": CallsheetSettings(core_sharing=CoreSharing.RESERVED),
    "no admission": CallsheetSettings(admission=False),
}
"""What callsheet is without each of its pieces, or with a perfect one."""


_RESERVATION = "reserve_1"


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
    results = _by_name(settings, {name: (name, None) for name in settings.policies}, progress)
    report = ComparisonReport(
        settings=settings,
        load=load_of(first),
        cores=cores,
        jobs=first.jobs,
        results=results,
        bounds=_bounds(settings, results),
    )
    if settings.source.trace is not None:
        acts = recorded_acts(settings.source.trace)
        report.recorded = {kind: _job_figures(np.array(act_s)) for kind, act_s in sorted(acts.items())}
    if options.ablations:
        report.ablations = _ablations(settings, progress)
    if options.equal_act and cores:
        report.equal_act = cores_for_equal_act(settings, _RESERVATION, first.live, progress)
    report.wall_s = time.perf_counter() - began
    if ranges is not None:
        report.bars = tuple(check(ranges, report.as_json()))
    return report


def _settings(source: ScenarioSource, options: ComparisonOptions, ranges: RangeFile | None) -> ComparisonSettings:
    """What is run; what is not given is as the ranges were recorded, or else all policies."""
    unknown = set(options.policies) - set(POLICIES)
    if unknown:
        raise ValueError(f"--policy: must be one of {', '.join(POLICIES)}, got {min(unknown)!r}")
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    policies = tuple(POLICIES)
    if ranges is not None:
        source, seeds = ranges.recorded_with(source, seeds)
        policies = ranges.policies
    return ComparisonSettings(source, seeds, options.policies or policies, options.at_once)


def _ablations(settings: ComparisonSettings, progress: Progress) -> dict[str, PolicyResult]:
    results = _by_name(settings, {name: (OURS, variant) for name, variant in ABLATIONS.items()}, progress)
    return {name: result for name, result in results.items() if result is not None}


def _by_name(
    settings: ComparisonSettings, variants: Mapping[str, tuple[str, CallsheetSettings | None]], progress: Progress
) -> dict[str, PolicyResult | None]:
    """Runs (policy, settings of it) by name on all seeds; seed by seed, so that a scenario is drawn once for all."""
    runs = {
        (name, seed): Run(policy, settings.source, seed, variant, name)
        for seed in settings.seeds
        for name, (policy, variant) in variants.items()
    }
    done = dict(zip(runs, run_all(list(runs.values()), settings.processes, progress), strict=True))
    results: dict[str, PolicyResult | None] = {}
    for name in variants:
        by_seed = tuple(result for seed in settings.seeds if (result := done[name, seed]) is not None)
        results[name] = PolicyResult(name, by_seed) if by_seed else None
    return results


def _bounds(settings: ComparisonSettings, results: Mapping[str, PolicyResult | None]) -> Mapping[str, float | None]:
    """Means over the seeds; a seed's bounds of ACT are the least over its runs."""
    runs = [run for result in results.values() if result is not None for run in result.by_seed]
    by_seed = []
    for seed in settings.seeds:
        acts = least([run.act_bounds for run in runs if run.seed == seed])
        by_seed.append(asdict(acts) | asdict(bounds_of(settings.source.scenario(seed))))
    return _means(by_seed)


def _means(by_seed: Sequence[Mapping[str, float | None]]) -> Mapping[str, float | None]:
    means: dict[str, float | None] = {}
    for name in by_seed[0]:
        values = [value for each in by_seed if (value := each[name]) is not None]
        means[name] = fmean(values) if values else None
    return means
