"""`callsheet bench sim`: scheduling policies side by side, in simulation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from callsheet.benchmarks.simulator.comparison.settings import ComparisonOptions, ComparisonSettings, ScenarioSource
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import measure, print_either, progress_on_stderr, say

if TYPE_CHECKING:
    from callsheet.benchmarks.simulator.comparison.ranges import RangeFile


@options_of(source=ScenarioSource, options=ComparisonOptions)
def sim(*, source: ScenarioSource, options: ComparisonOptions, as_json: AsJson = False) -> None:
    """Simulate policies on the very same trajectories.

    It runs in virtual time. Prints ACT of external actions (overhead included), longest waits, the wait to start, the
    step or the rate of trajectories, and cores held and used: by policy, as means over the seeds and by seed, beside
    bounds that no policy can beat.
    """
    at_once = options.processes or len(os.sched_getaffinity(0))
    if options.calibrate:
        _calibrate(at_once, as_json=as_json)
        return
    with needs("bench"):
        from callsheet.benchmarks.simulator.policies import POLICIES
    unknown = set(options.policies) - set(POLICIES)
    if unknown:
        raise CommandError(f"--policy: must be one of {', '.join(POLICIES)}, got {min(unknown)!r}", usage=True)
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    expected = _load_ranges(options.check) if options.check is not None else None
    if expected is None:
        settings = ComparisonSettings(source, seeds, options.policies or tuple(POLICIES), at_once)
    else:
        source, seeds = expected.recorded_with(source, seeds)
        settings = ComparisonSettings(source, seeds, options.policies or expected.policies, at_once)
    _compare(settings, options, expected, as_json=as_json)


def _compare(
    settings: ComparisonSettings, options: ComparisonOptions, expected: RangeFile | None, *, as_json: bool
) -> None:
    with needs("bench"):
        from callsheet.benchmarks.simulator.comparison.render import render
        from callsheet.benchmarks.simulator.comparison.run import run_comparison
    try:
        with progress_on_stderr() as progress:
            report = run_comparison(settings, options, progress)
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
    say(f"all {len(verdicts)} figures are in range", err=True)


def _calibrate(processes: int, *, as_json: bool) -> None:
    with needs("bench"):
        from callsheet.benchmarks.simulator.calibration import calibrate
        from callsheet.benchmarks.simulator.calibration.render import render
    measure(as_json, lambda progress: calibrate(progress, processes=processes), render)
