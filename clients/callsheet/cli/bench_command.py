"""`callsheet bench`: benchmarks."""

from __future__ import annotations

from dataclasses import replace

import typer
from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.cli import bench_planner_command, bench_real_command, bench_sandbox_command, bench_sim_command
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_json, print_report, progress_on_stderr
from callsheet.options.common import LogFormat, LogLevel

bench_app = typer.Typer(help="Run a benchmark.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def _bench() -> None:
    """Run a benchmark."""


bench_app.command("planner")(bench_planner_command.planner)
bench_app.command("real")(bench_real_command.real)
bench_app.command("sandbox")(bench_sandbox_command.sandbox)
bench_app.command("sim")(bench_sim_command.sim)


@bench_app.command("dispatch")
@options_of(settings=DispatchSettings)
def dispatch(*, settings: DispatchSettings, as_json: AsJson = False) -> None:
    """Measure no-op actions, beside raw gRPC streams and Ray."""
    import anyio

    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.dispatch.render import render
        from callsheet.benchmarks.dispatch.run import run_dispatch
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    settings = replace(settings, ray=replace(settings.ray, repetitions=settings.repetitions))
    with progress_on_stderr() as progress:
        report = anyio.run(run_dispatch, settings, progress)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(render(report))
