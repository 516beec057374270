"""Runs the dispatch benchmark from beginning to end."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field, replace
from statistics import median

from callsheet.benchmarks.dispatch.callsheet_load import Burst, CallsheetLoad, counted_batches
from callsheet.benchmarks.dispatch.loops import measure_loops
from callsheet.benchmarks.dispatch.raw_streams import RawServers, raw_servers, two_hops_latencies
from callsheet.benchmarks.dispatch.ray_baseline import measure_ray
from callsheet.benchmarks.dispatch.report import Beside, CallsheetFigures, DispatchReport, RawFigures
from callsheet.benchmarks.dispatch.service import running_service
from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine, filesystem_of, fsync_p50_us
from callsheet.benchmarks.measuring.processes import system_calls_counted, use_of
from callsheet.benchmarks.measuring.statistics import percentile
from callsheet.client import Client
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.options.temporary_directories import temporary_directory


@dataclass(slots=True)
class _Samples:
    """Everything measured so far, in repetitions side by side."""

    rates: list[float] = field(default_factory=list)
    idle: list[list[float]] = field(default_factory=list)
    two_hops: list[list[float]] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)
    action_bytes: int = 0
    burst: Burst = field(default_factory=lambda: Burst(0, 0.0))


@dataclass(slots=True)
class _Bench:
    """What measurements need."""

    load: CallsheetLoad
    stack: Stack
    raw: RawServers
    settings: DispatchSettings
    samples: _Samples


async def run_dispatch(settings: DispatchSettings, progress: Progress = lambda _: None) -> DispatchReport:
    """Measures every loop on an otherwise idle machine, and then no-ops beside raw streams and Ray.

    Args:
        settings: What and how much to measure.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ProcessFailedError: A process did not start (inside an exception group).
        NotMeasurableError: An action did not succeed (inside an exception group).
        TimeoutError: An action had no outcome (inside an exception group).
        RayRunFailedError: Ray is not installed or failed.
    """
    began = time.monotonic()
    machine = describe_machine()
    prefix = f"{random.Random(settings.seed).getrandbits(32):08x}"
    with temporary_directory("callsheet-bench-") as directory:
        progress("starting the service")
        async with running_service(settings, prefix, directory) as service:
            loops = await measure_loops(service, settings, progress)
    return DispatchReport(
        kind=settings.kind.value,
        managers=settings.managers,
        loops=loops,
        comparison=await _compare(settings, prefix, progress) if settings.has_rivals else None,
        counted=system_calls_counted(),
        machine=machine,
        seed=settings.seed,
        wall_s=time.monotonic() - began,
    )


async def _compare(settings: DispatchSettings, prefix: str, progress: Progress) -> Beside:
    """Measures Callsheet, raw streams and Ray, one after another.

    Callsheet's scheduler and manager and the raw servers run at the same time, idle but for the one being measured;
    their measurements alternate, so that a slow spell of the machine meets both. Ray runs alone, after they have ended.
    """
    samples = _Samples()
    with temporary_directory("callsheet-bench-") as data_dir:
        journal = {"filesystem": filesystem_of(data_dir), "fsync_p50_us": fsync_p50_us(data_dir)}
        progress("starting scheduler, manager and raw servers")
        stack_settings = StackSettings(data_dir=data_dir / "callsheet", managers=(Role.NOOP,))
        async with local_stack(stack_settings) as stack, raw_servers() as raw, Client(stack.address) as client:
            job = await client.open_job("dispatch")
            bench = _Bench(CallsheetLoad(job, prefix), stack, raw, settings, samples)
            await _measure(bench, progress)
            await job.close()
    progress("measuring Ray")
    ray = await measure_ray(replace(settings.ray, repetitions=settings.repetitions))
    return Beside(_callsheet_figures(settings, samples), _raw_figures(samples), ray, settings.repetitions, journal)


async def _measure(bench: _Bench, progress: Progress) -> None:
    load, settings = bench.load, bench.settings
    progress("warming up")
    await load.actions_per_s(min(settings.actions, settings.window), settings.window)
    for repetition in range(1, settings.repetitions + 1):
        of = f"{repetition} of {settings.repetitions}"
        progress(f"idle latency, {of}")
        await _measure_idle(bench)
        progress(f"throughput, {of}")
        await _measure_throughput(bench)
    progress(f"a burst of {settings.burst}")
    bench.samples.burst = await load.burst(settings.burst)


async def _measure_idle(bench: _Bench) -> None:
    settings, samples = bench.settings, bench.samples
    count = -(-settings.idle_samples // settings.repetitions)
    with counted_batches() as sent:
        samples.idle.append(await bench.load.idle_latencies(count, settings.idle_warm_up))
    samples.action_bytes = sent.size_bytes // sent.messages
    message = bytes(samples.action_bytes)
    samples.two_hops.append(await two_hops_latencies(bench.raw, message, count, settings.idle_warm_up))


async def _measure_throughput(bench: _Bench) -> None:
    settings, samples = bench.settings, bench.samples
    before = _cpu_seconds(bench.stack)
    samples.rates.append(await bench.load.actions_per_s(settings.actions, settings.window))
    after = _cpu_seconds(bench.stack)
    samples.cpu_s.append({name: after[name] - before[name] for name in after})


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    """CPU seconds that each process of an action's path has used so far."""
    pids = {"client": os.getpid(), "scheduler": stack.pid(Role.SCHEDULER), "manager": stack.pid(Role.NOOP)}
    return {name: use_of(pid).cpu_s for name, pid in pids.items()}


def _callsheet_figures(settings: DispatchSettings, samples: _Samples) -> CallsheetFigures:
    return CallsheetFigures(
        actions_per_s=median(samples.rates),
        in_flight=settings.window,
        actions_per_repetition=settings.actions,
        action_bytes=samples.action_bytes,
        cpu_us_per_action={
            name: median([used[name] for used in samples.cpu_s]) / settings.actions * 1e6 for name in samples.cpu_s[0]
        },
        idle_p50_us=_percentile_us(samples.idle, 50),
        idle_p99_us=_percentile_us(samples.idle, 99),
        idle_samples=sum(map(len, samples.idle)),
        burst_actions=settings.burst,
        burst_refused=samples.burst.refused,
        burst_s=samples.burst.wall_s,
    )


def _raw_figures(samples: _Samples) -> RawFigures:
    return RawFigures(
        raw_two_hops_p50_us=_percentile_us(samples.two_hops, 50),
        raw_two_hops_p99_us=_percentile_us(samples.two_hops, 99),
    )


def _percentile_us(repetitions: list[list[float]], percent: float) -> float:
    """Median over the repetitions of their percentiles, in microseconds."""
    return median([percentile(latencies, percent) for latencies in repetitions]) * 1e6
