"""`callsheet demo`: real agentic rollouts on a private stack, and what scheduling by action gains."""

from __future__ import annotations

import functools

import typer
from callsheet.benchmarks.demo.settings import DemoSettings
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import measure, say
from callsheet.cli.questions import connection_options
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=DemoSettings)
def demo(*, settings: DemoSettings, as_json: AsJson = False) -> None:
    """Run coding and game trajectories, by action and reserved.

    The stack is private (its own processes, a free port) unless --scheduler names one.
    Exits with 1 if an episode was lost or a bug not caught.
    """
    import anyio

    with needs("local"):
        from callsheet.benchmarks.demo.render import render, render_run
        from callsheet.benchmarks.demo.run import run_demo, run_on_stack
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    problems: list[str]
    if (address := settings.scheduler) is None:
        problems = measure(as_json, lambda progress: anyio.run(run_demo, settings, progress), render).problems()
    else:
        options = connection_options()
        run = functools.partial(run_on_stack, settings, address, options)
        problems = measure(as_json, lambda progress: anyio.run(run, progress), render_run).problems()
    for problem in problems:
        say(f"callsheet: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
