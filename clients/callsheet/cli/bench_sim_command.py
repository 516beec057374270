"""`callsheet bench sim`: scheduling policies side by side, in simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from callsheet.cli import bench_sim_options as options
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import AsJson
from callsheet.cli.output import print_json, print_report, progress_on_stderr

_COMPARISON = "callsheet.benchmarks.simulator.comparison"


def sim(
    *,
    workload: options.Workload = "coding",
    mode: options.Mode = options.SimMode.ONESHOT,
    trajectories: options.Trajectories = None,
    cores: options.Cores = None,
    nodes: options.Nodes = None,
    gpus: options.Gpus = None,
    seed: options.FirstSeed = 1,
    seeds: options.Seeds = 1,
    generation_scale: options.GenerationScale = 1.0,
    rewards: options.Rewards = None,
    trace: options.Trace = None,
    policy: options.Policies = None,
    ablations: options.Ablations = False,
    equal_act: options.EqualAct = False,
    plots: options.Plots = None,
    check: options.Check = None,
    calibrate: options.Calibrate = False,
    processes: options.Processes = None,
    as_json: AsJson = False,
) -> None:
    """Simulate policies on the very same trajectories, in virtual time.

    Prints ACT of external actions (overhead included), longest waits, the wait to start, the step or the rate of
    trajectories, and cores held and used: by policy, as means over the seeds and by seed, beside bounds that no policy
    can beat.
    """
    at_once = processes or len(os.sched_getaffinity(0))
    if calibrate:
        _calibrate(at_once, trace, as_json=as_json)
        return
    settings_module = load(f"{_COMPARISON}.settings", "bench")
    policies = load("callsheet.benchmarks.simulator.policies", "bench").POLICIES
    unknown = set(policy or ()) - set(policies)
    if unknown:
        raise CommandError(f"--policy: must be one of {', '.join(policies)}, got {min(unknown)!r}", usage=True)
    scenario_mode = load("callsheet.benchmarks.simulator.scenario", "bench").Mode(mode.value)
    source = settings_module.ScenarioSource(
        workload=workload,
        mode=scenario_mode,
        trajectories=trajectories,
        cores=cores,
        nodes=nodes,
        gpus=gpus,
        generation_scale=generation_scale,
        reward_mix=rewards,
        trace=trace,
    )
    settings = settings_module.ComparisonSettings(
        source, tuple(range(seed, seed + seeds)), tuple(policy or policies), at_once
    )
    _compare(settings, ablations=ablations, equal_act=equal_act, plots=plots, check=check, as_json=as_json)


def _compare(
    settings: Any, *, ablations: bool, equal_act: bool, plots: Path | None, check: str | None, as_json: bool
) -> None:
    runner = load(f"{_COMPARISON}.run", "bench")
    expected = _load_ranges(check) if check is not None else None
    extras = runner.Extras(ablations=ablations, sweeps=plots is not None, equal_act=equal_act)
    try:
        with progress_on_stderr() as progress:
            report = runner.run_comparison(settings, extras, progress)
            if plots is not None:
                progress(f"plots: {load(f'{_COMPARISON}.page', 'bench').write_page(plots, report)}")
    except (ValueError, OSError) as error:
        raise CommandError(str(error), usage=isinstance(error, ValueError)) from error
    if as_json:
        print_json(report.as_json())
    else:
        print_report(load(f"{_COMPARISON}.render", "bench").render(report))
    if expected is not None:
        _check(expected, report.as_json())


def _load_ranges(name: str) -> Any:
    ranges = load(f"{_COMPARISON}.ranges", "bench")
    try:
        return ranges.load_ranges(ranges.find_ranges(name))
    except (ValueError, OSError) as error:
        raise CommandError(f"--check: {error}", usage=True) from error


def _check(expected: Any, report: dict[str, Any]) -> None:
    ranges = load(f"{_COMPARISON}.ranges", "bench")
    try:
        verdicts = list(ranges.check(expected, report))
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    missed = [f"{verdict.range}: found {verdict.value}" for verdict in verdicts if not verdict.met]
    if missed:
        raise CommandError("out of range: " + "; ".join(missed))
    typer.echo(f"all {len(verdicts)} figures are in range", err=True)


def _calibrate(processes: int, trace: Path | None, *, as_json: bool) -> None:
    calibration = load("callsheet.benchmarks.simulator.calibration", "bench")
    with progress_on_stderr() as progress:
        table = calibration.calibrate(progress, processes=processes, trace=trace)
    if as_json:
        print_json(table.as_json())
    else:
        print_report(load("callsheet.benchmarks.simulator.calibration.render", "bench").render(table))
