"""`callsheet demo`: real agentic rollouts on a private stack, and what scheduling by action gains."""

from __future__ import annotations

import typer
from callsheet.benchmarks.demo.settings import DemoSettings
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import measure, say
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=DemoSettings)
def demo(*, settings: DemoSettings, as_json: AsJson = False) -> None:
    """Run coding and game trajectories, by action and reserved.

    The stack is private: its own processes, a free port. Exits with 1 if an episode was lost or a bug not caught.
    """
    import anyio

    with needs("local"):
        from callsheet.benchmarks.demo.render import render
        from callsheet.benchmarks.demo.run import run_demo
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    report = measure(as_json, lambda progress: anyio.run(run_demo, settings, progress), render)
    problems = report.problems()
    for problem in problems:
        say(f"callsheet: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
