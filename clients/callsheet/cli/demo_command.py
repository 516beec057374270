"""`callsheet demo`: real agentic rollouts on a private stack, and what scheduling by action gains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import AsJson
from callsheet.cli.output import print_json, print_report, progress_on_stderr
from callsheet.deploy.choices import Isolation, LogFormat, LogLevel


def demo(
    *,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 0,
    trajectories: Annotated[
        int | None,
        typer.Option(min=1, show_default="six per free core, at least 12", help="Number in each mode."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(envvar="CALLSHEET_CPUS", min=2, show_default="all, at most 8", help="Cores to use.")
    ] = None,
    isolation: Annotated[
        Isolation | None,
        typer.Option(
            envvar="CALLSHEET_ISOLATION",
            show_default="bubblewrap where it works, else none",
            help="What keeps sandboxes apart.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            show_default="a temporary directory",
            help="Where the stack keeps its journal, payloads, sandboxes and logs.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run coding and game trajectories end to end, once by action and once with a core reserved per trajectory.

    The stack is private: its own processes, a free port. Exits with 1 if an episode was lost or a bug not caught.
    """
    import anyio

    settings_module = load("callsheet.benchmarks.demo.settings", "local")
    runner = load("callsheet.benchmarks.demo.run", "local")
    render = load("callsheet.benchmarks.demo.render", "local").render
    load("callsheet.deploy.logs", "local").configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        settings = settings_module.DemoSettings(
            seed=seed, trajectories=trajectories, cpus=cpus, isolation=isolation, data_dir=data_dir
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    with progress_on_stderr() as progress:
        report = anyio.run(runner.run_demo, settings, progress)
    if as_json:
        print_json(report.to_json())
    else:
        print_report(render(report))
    problems = report.problems()
    for problem in problems:
        typer.echo(f"callsheet: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
