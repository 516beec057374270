"""Measures what an action costs under a load."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import anyio
from callsheet.benchmarks.dispatch.loads import ActionLoad, ClosedLoad, OpenLoad, Took
from callsheet.benchmarks.dispatch.report import LoopFigures
from callsheet.benchmarks.dispatch.service import MeasuredService
from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.processes import Counted, Use, count_calls
from callsheet.benchmarks.measuring.statistics import percentile

# Of the measured seconds: before them, and after them with the counting of system calls, which costs some time itself.
_WARM_UP = 0.3
_COUNTED = 0.3


async def measure_loops(service: MeasuredService, settings: DispatchSettings, progress: Progress) -> list[LoopFigures]:
    """Measures every loop of the settings, one after the other.

    Raises:
        NotMeasurableError: An action did not succeed (inside an exception group).
        TimeoutError: An action had no outcome (inside an exception group).
    """
    one, found = service.work.one, []
    for lanes in settings.in_flight:
        progress(f"{settings.kind}: {lanes} in flight")
        found.append(await _measure("closed", lanes, ClosedLoad(one, lanes), service, settings))
    for rate in settings.open_loop:
        progress(f"{settings.kind}: {rate} a second")
        load = OpenLoad(one, settings.open_lanes, rate=rate, seed=settings.seed)
        found.append(await _measure("open", rate, load, service, settings))
    return found


async def _measure(
    loop: str, size: int, load: ActionLoad, service: MeasuredService, settings: DispatchSettings
) -> LoopFigures:
    await service.work.make_lanes(load.lanes)
    load_1m = os.getloadavg()[0]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run)
        await anyio.sleep(settings.seconds * _WARM_UP)
        messages = -await service.messages()
        before, began, first, left_out = service.uses(), time.perf_counter(), len(load.took), load.left_out
        await anyio.sleep(settings.seconds)
        last, left_out, took_s = len(load.took), load.left_out - left_out, time.perf_counter() - began
        after = service.uses()
        messages += await service.messages()
        counting_s, first_counted, began = settings.seconds * _COUNTED, len(load.took), time.perf_counter()
        calls = await count_calls(service.processes, service.processes["manager"], counting_s)
        # The counting is begun and ended while actions go on: they are as frequent within it.
        counted = (len(load.took) - first_counted) * counting_s / (time.perf_counter() - began)
        load.stopping = True
    return _figures(
        loop,
        size,
        load.took[first:last],
        uses=(before, after),
        took_s=took_s,
        messages=messages,
        calls=calls,
        counted=max(1.0, counted),
        left_out=left_out,
        load_1m=load_1m,
    )


def _figures(
    loop: str,
    size: int,
    ended: list[Took],
    *,
    uses: tuple[Mapping[str, Use], Mapping[str, Use]],
    took_s: float,
    messages: float,
    calls: Mapping[str, Counted],
    counted: float,
    left_out: int,
    load_1m: float,
) -> LoopFigures:
    before, after = uses
    latencies = [each.latency_s * 1e3 for each in ended] or [float("nan")]
    overheads = [each.overhead_s * 1e3 for each in ended] or [float("nan")]
    actions = max(1, len(ended))
    used_s = {name: after[name].cpu_s - use.cpu_s for name, use in before.items()}
    if "rest" in calls and (rest_s := calls["rest"].cpu_s) is not None:
        # Nobody waits for sandboxes that are killed as a whole, so that their times are lost.
        used_s["rest"] = rest_s / counted * actions
    return LoopFigures(
        loop=loop,
        size=size,
        actions=len(ended),
        actions_per_s=len(ended) / took_s,
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        overhead_p99_ms=percentile(overheads, 99),
        cpu_ms={name: each * 1e3 / actions for name, each in used_s.items()},
        cores={name: each / took_s for name, each in used_s.items()},
        messages=messages / actions,
        wake_ups={name: (after[name].wake_ups - use.wake_ups) / actions for name, use in before.items()},
        system_calls={name: each.calls / counted for name, each in calls.items()},
        left_out=left_out,
        load_1m=load_1m,
    )
