"""`callsheet bench sim`: scheduling policies side by side, in simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from callsheet.benchmarks.simulator.comparison.settings import ComparisonSettings, ScenarioSource
from callsheet.cli import bench_sim_options as options
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_either, progress_on_stderr

if TYPE_CHECKING:
    from callsheet.benchmarks.simulator.comparison.ranges import RangeFile


@options_of(source=ScenarioSource)
def sim(
    *,
    source: ScenarioSource,
    seed: options.FirstSeed = 1,
    seeds: options.Seeds = 1,
    policy: options.Policies = None,
    ablations: options.Ablations = False,
    equal_act: options.EqualAct = False,
    plots: options.Plots = None,
    check: options.Check = None,
    calibrate: options.Calibrate = False,
    processes: options.Processes = None,
    as_json: AsJson = False,
) -> None:
    """Simulate policies on the very same trajectories.

    It runs in virtual time. Prints ACT of external actions (overhead included), longest waits, the wait to start, the
    step or the rate of trajectories, and cores held and used: by policy, as means over the seeds and by seed, beside
    bounds that no policy can beat.
    """
    at_once = processes or len(os.sched_getaffinity(0))
    if calibrate:
        _calibrate(at_once, source.trace, as_json=as_json)
        return
    with needs("bench"):
        from callsheet.benchmarks.simulator.policies import POLICIES
    unknown = set(policy or ()) - set(POLICIES)
    if unknown:
        raise CommandError(f"--policy: must be one of {', '.join(POLICIES)}, got {min(unknown)!r}", usage=True)
    settings = ComparisonSettings(source, tuple(range(seed, seed + seeds)), tuple(policy or POLICIES), at_once)
    _compare(settings, ablations=ablations, equal_act=equal_act, plots=plots, check=check, as_json=as_json)


def _compare(
    settings: ComparisonSettings,
    *,
    ablations: bool,
    equal_act: bool,
    plots: Path | None,
    check: str | None,
    as_json: bool,
) -> None:
    with needs("bench"):
        from callsheet.benchmarks.simulator.comparison.page import write_page
        from callsheet.benchmarks.simulator.comparison.render import render
        from callsheet.benchmarks.simulator.comparison.run import Extras, run_comparison
    expected = _load_ranges(check) if check is not None else None
    extras = Extras(ablations=ablations, sweeps=plots is not None, equal_act=equal_act)
    try:
        with progress_on_stderr() as progress:
            report = run_comparison(settings, extras, progress)
            if plots is not None:
                progress(f"plots: {write_page(plots, report)}")
    except (ValueError, OSError) as error:
        raise CommandError(str(error), usage=isinstance(error, ValueError)) from error
    print_either(as_json, report.as_json, lambda: render(report))
    if expected is not None:
        _check(expected, report.as_json())


def _load_ranges(name: str) -> RangeFile:
    from callsheet.benchmarks.simulator.comparison.ranges import find_ranges, load_ranges

    try:
        return load_ranges(find_ranges(name))
    except (ValueError, OSError) as error:
        raise CommandError(f"--check: {error}", usage=True) from error


def _check(expected: RangeFile, report: dict[str, Any]) -> None:
    from callsheet.benchmarks.simulator.comparison.ranges import check

    try:
        verdicts = list(check(expected, report))
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    missed = [f"{verdict.range}: found {verdict.value}" for verdict in verdicts if not verdict.met]
    if missed:
        raise CommandError("out of range: " + "; ".join(missed))
    typer.echo(f"all {len(verdicts)} figures are in range", err=True)


def _calibrate(processes: int, trace: Path | None, *, as_json: bool) -> None:
    with needs("bench"):
        from callsheet.benchmarks.simulator.calibration import calibrate
        from callsheet.benchmarks.simulator.calibration.render import render
    with progress_on_stderr() as progress:
        table = calibrate(progress, processes=processes, trace=trace)
    print_either(as_json, table.as_json, lambda: render(table))
