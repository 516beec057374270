"""`callsheet demo`: real agentic rollouts on a private stack, and what scheduling by action gains."""

from __future__ import annotations

from functools import partial

from callsheet.benchmarks.demo.settings import DemoSettings
from callsheet.cli.bench_runner import Run, benchmark
from callsheet.cli.questions import connection_options


@benchmark(DemoSettings, extra="local")
def demo(settings: DemoSettings) -> Run[DemoSettings]:
    """Run coding and game trajectories, by action and reserved.

    The stack is private (its own processes, a free port) unless --scheduler names one.
    Exits with 1 if an episode was lost or a bug not caught.
    """
    from callsheet.benchmarks.demo.run import run_demo, run_on_stack

    return run_demo if settings.scheduler is None else partial(run_on_stack, connection_options())
