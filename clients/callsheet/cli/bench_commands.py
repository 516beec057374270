"""`callsheet bench` of all but `sim`: each prints a report."""

from __future__ import annotations

from dataclasses import replace

import anyio
import typer
from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.benchmarks.gateway.settings import GatewayBenchSettings
from callsheet.benchmarks.groups.settings import GroupsBenchSettings
from callsheet.benchmarks.planner.settings import PlannerBenchSettings
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.rewards.settings import RewardsBenchSettings
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.benchmarks.soak.settings import SoakSettings
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import measure
from callsheet.options.common import LogFormat, LogLevel


@options_of(settings=DispatchSettings)
def dispatch(*, settings: DispatchSettings, as_json: AsJson = False) -> None:
    """Measure no-op actions, beside raw gRPC streams and Ray."""
    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.dispatch.render import render
        from callsheet.benchmarks.dispatch.run import run_dispatch
    _log_warnings()
    settings = replace(settings, ray=replace(settings.ray, repetitions=settings.repetitions))
    measure(as_json, lambda progress: anyio.run(run_dispatch, settings, progress), render)


@options_of(settings=GatewayBenchSettings)
def gateway(*, settings: GatewayBenchSettings, as_json: AsJson = False) -> None:
    """Tell whether a gateway's samples are what the engine sampled.

    Harnesses hold conversations with tools, reasoning and branches, and change what they send back. It ends with exit
    code 1 if a token, a mask, a log-probability or a version differs, or a bar is missed.
    """
    with needs("bench"), needs("gateway"):
        from callsheet.benchmarks.gateway.render import render
        from callsheet.benchmarks.gateway.run import run_gateway_bench
    _log_warnings()
    report = measure(as_json, lambda progress: anyio.run(run_gateway_bench, settings, progress), render)
    if not report.met:
        raise typer.Exit(1)


@options_of(settings=GroupsBenchSettings)
def groups(*, settings: GroupsBenchSettings, as_json: AsJson = False) -> None:
    """Measure batches of groups whose environments hang and crash.

    Then trainers are killed between taking a batch and acknowledging it. It ends with exit code 1 if faults cost more
    than a quarter with a quorum, or a trajectory is not trained on exactly once.
    """
    with needs("bench"):
        from callsheet.benchmarks.groups.render import render
        from callsheet.benchmarks.groups.run import run_groups_bench
    _log_warnings()
    report = measure(as_json, lambda progress: anyio.run(run_groups_bench, settings, progress), render)
    if report.findings:
        raise typer.Exit(1)


@options_of(settings=PlannerBenchSettings)
def planner(*, settings: PlannerBenchSettings, as_json: AsJson = False) -> None:
    """Measure planning rounds on a large fleet with a long queue.

    The core is real; there is no network and no journal.
    """
    with needs("bench"):
        from callsheet.benchmarks.planner.render import render
        from callsheet.benchmarks.planner.run import run_planner_bench
    measure(as_json, lambda progress: run_planner_bench(settings, progress), render)


@options_of(settings=RealSettings)
def real(*, settings: RealSettings, as_json: AsJson = False) -> None:
    """Run policies with real commands in real sandboxes.

    They run one after another, each beside the simulator's prediction. Ray runs the same trajectories with commands
    that sleep, and so does callsheet once more.
    """
    with needs("bench"):
        import ray  # noqa: F401
        from callsheet.benchmarks.real.render import render
        from callsheet.benchmarks.real.run import run_real
    _log_warnings()
    try:
        measure(as_json, lambda progress: anyio.run(run_real, settings, progress), render)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error


@options_of(settings=RewardsBenchSettings)
def rewards(*, settings: RewardsBenchSettings, as_json: AsJson = False) -> None:
    """Measure many reward models in the memory of few.

    Beside them run two simpler ways to swap, and all models in memory at once. It ends with exit code 1 if a bar is
    missed.
    """
    with needs("bench"):
        import transformers  # noqa: F401
        from callsheet.benchmarks.rewards.render import render
        from callsheet.benchmarks.rewards.run import run_rewards
    _log_warnings()
    report = measure(as_json, lambda progress: anyio.run(run_rewards, settings, progress), render)
    if not report.met:
        raise typer.Exit(1)


@options_of(settings=SandboxBenchSettings)
def sandbox(*, settings: SandboxBenchSettings, as_json: AsJson = False) -> None:
    """Measure what sandboxes cost while others live.

    They are made, reset, used, moved and frozen, beside the bare tool doing the same.
    """
    with needs("bench"):
        from callsheet.benchmarks.sandbox.render import render
        from callsheet.benchmarks.sandbox.run import run_sandbox_bench
    _log_warnings()
    measure(as_json, lambda progress: anyio.run(run_sandbox_bench, settings, progress), render)


@options_of(settings=SoakSettings)
def soak(*, settings: SoakSettings, as_json: AsJson = False) -> None:
    """Tell whether a loaded scheduler stays bounded.

    There are small and large actions, jobs that come and go, and client streams that nobody reads. It ends with exit
    code 1 if anything outgrew what the scheduler's settings allow.
    """
    with needs("bench"):
        from callsheet.benchmarks.soak.databases import NoDatabaseError
        from callsheet.benchmarks.soak.render import render
        from callsheet.benchmarks.soak.run import run_soak
    _log_warnings()
    try:
        report = measure(as_json, lambda progress: anyio.run(run_soak, settings, progress), render)
    except NoDatabaseError as error:
        raise CommandError(str(error)) from error
    if not report.bounded:
        raise typer.Exit(1)


def _log_warnings() -> None:
    with needs("bench"):
        from callsheet.deploy.logs import configure_logs
    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
