"""`callsheet bench`: benchmarks."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli import bench_planner_command, bench_real_command, bench_sandbox_command, bench_sim_command
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import AsJson
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
def dispatch(
    *,
    actions: Annotated[int, typer.Option(min=1, help="Actions in one repetition of the throughput.")] = 20_000,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Actions under way meanwhile.")] = 2_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions; their medians count.")] = 3,
    idle_samples: Annotated[int, typer.Option(min=1, help="Actions of the idle latency.")] = 900,
    burst: Annotated[int, typer.Option(min=1, help="Actions submitted at once.")] = 10_000,
    ray_calls: Annotated[int, typer.Option("--ray-calls", min=1, help="Calls in one of Ray's repetitions.")] = 4_000,
    seed: Annotated[int, typer.Option(min=0, help="Action ids are drawn from it.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure no-op actions, beside raw gRPC streams and Ray."""
    import anyio

    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.dispatch.ray_baseline import RaySettings
        from callsheet.benchmarks.dispatch.render import render
        from callsheet.benchmarks.dispatch.run import run_dispatch
        from callsheet.benchmarks.dispatch.settings import DispatchSettings
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        settings = DispatchSettings(
            actions=actions,
            in_flight=in_flight,
            repetitions=repetitions,
            idle_samples=idle_samples,
            burst=burst,
            seed=seed,
            ray=RaySettings(calls=ray_calls, repetitions=repetitions),
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    with progress_on_stderr() as progress:
        report = anyio.run(run_dispatch, settings, progress)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(render(report))
