"""The commands of `callsheet bench`."""

from __future__ import annotations

from functools import partial

from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.benchmarks.simulator.comparison.settings import ComparisonOptions, ScenarioSource
from callsheet.cli.bench_runner import Run, benchmark, run_benchmark
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import needs


@benchmark(DispatchSettings)
def dispatch(settings: DispatchSettings) -> Run[DispatchSettings]:
    """Measure the cost of actions, beside raw gRPC streams and Ray.

    CPU by process, latency, messages, wake-ups and system calls: with so many actions under way, and with so many a
    second. It ends with exit code 1 if one of a burst of no-ops is refused.
    """
    if settings.has_rivals:
        import ray  # noqa: F401
    from callsheet.benchmarks.dispatch.run import run_dispatch

    return run_dispatch


@benchmark(RealSettings)
def real(settings: RealSettings) -> Run[RealSettings]:
    """Run policies with real commands in real sandboxes.

    Callsheet and plain sharing run one after another, each beside the simulator's prediction.
    """
    from callsheet.benchmarks.real.run import run_real

    return run_real


@benchmark(SandboxBenchSettings)
def sandbox(settings: SandboxBenchSettings) -> Run[SandboxBenchSettings]:
    """Measure what sandboxes cost while others live.

    They are made, used and reset through the whole service. It ends with exit code 1 if the service adds more than 3 %
    to a command of a second.
    """
    from callsheet.benchmarks.sandbox.run import run_sandbox_bench

    return run_sandbox_bench


@options_of(source=ScenarioSource, options=ComparisonOptions)
def sim(*, source: ScenarioSource, options: ComparisonOptions, as_json: AsJson = False) -> None:
    """Simulate policies on the very same trajectories.

    It runs in virtual time. Prints ACT of external actions (overhead included), longest waits, the wait to start, the
    step or the rate of trajectories, and cores held and used: by policy, as means over the seeds and by seed.
    """
    with needs("bench"):
        from callsheet.benchmarks.simulator.comparison.run import run_comparison
    run_benchmark(partial(run_comparison, source, options), as_json)
