"""`callsheet bench real`: scheduling policies side by side, with real processes."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import AsJson
from callsheet.cli.output import print_json, print_report, progress_on_stderr
from callsheet.deploy.choices import LogFormat, LogLevel


def real(
    *,
    trajectories: Annotated[int, typer.Option(min=1, help="Run at once.")] = 12,
    turns: Annotated[int, typer.Option(min=1, help="Of each trajectory, at most.")] = 8,
    cores: Annotated[int | None, typer.Option(min=1, show_default="all", help="Cores to schedule.")] = None,
    generation_scale: Annotated[
        float, typer.Option("--generation-scale", min=0.01, help="Factor on the coding workload's generation times.")
    ] = 0.4,
    longest: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Commands are cut to so much CPU time.")
    ] = (6.0),
    seed: Annotated[int, typer.Option(min=0, help="Trajectories are drawn from it.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run policies with real commands in real sandboxes, one after another, each beside the simulator's prediction.

    Ray runs the same trajectories with commands that sleep, and so does callsheet once more.
    """
    import anyio

    load("ray", "bench")
    settings_module = load("callsheet.benchmarks.real.settings", "bench")
    runner = load("callsheet.benchmarks.real.run", "bench")
    load("callsheet.deploy.logs", "bench").configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        settings = settings_module.RealSettings(
            trajectories=trajectories,
            turns=turns,
            cores=cores,
            generation_scale=generation_scale,
            longest_s=longest,
            seed=seed,
        )
        with progress_on_stderr() as progress:
            report = anyio.run(runner.run_real, settings, progress)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    if as_json:
        print_json(report.as_json())
    else:
        print_report(load("callsheet.benchmarks.real.render", "bench").render(report))
