"""Runs a comparison from beginning to end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.bounds import bounds_of, least
from callsheet.benchmarks.simulator.comparison.figures import PolicyResult
from callsheet.benchmarks.simulator.comparison.load import load_of
from callsheet.benchmarks.simulator.comparison.ranges import RangeFile, check, load_ranges
from callsheet.benchmarks.simulator.comparison.report import ComparisonReport
from callsheet.benchmarks.simulator.comparison.runs import Run, run_all
from callsheet.benchmarks.simulator.comparison.settings import ComparisonOptions, ComparisonSettings, ScenarioSource
from callsheet.benchmarks.simulator.comparison.sweeps import ABLATIONS, OURS, cores_for_equal_act
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings

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
