"""Loads, which are actions that keep coming in a closed loop or an open one, and what an action costs under them."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.abc
from callsheet.benchmarks.dispatch.report import LoopFigures
from callsheet.benchmarks.dispatch.service import MeasuredService
from callsheet.benchmarks.dispatch.settings import DispatchSettings
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.processes import Counted, Use, count_calls
from callsheet.benchmarks.measuring.statistics import percentile

One = Callable[[int], Awaitable[float]]
"""Does one action in a lane, of which none needs to be waited for; returns its overhead in seconds."""
_DEADLINE_S = 300.0
CEILING_P99_MS = 100.0
_STEEPNESS = 1.25
# Of the measured seconds: before them, and after them with the counting of system calls, which costs some time itself.
_WARM_UP = 0.3
_COUNTED = 0.3


@dataclass(frozen=True, slots=True)
class Took:
    """How long an action took, in seconds.

    Attributes:
        latency_s: From when it was due to its outcome.
        overhead_s: Of it, by the scheduler's clock, neither waiting nor execution; 0 where nobody tells.
    """

    latency_s: float
    overhead_s: float


@dataclass(slots=True)
class ActionLoad(ABC):
    """Actions that keep coming.

    Attributes:
        one: Does one.
        lanes: How many lanes they are spread over.
        took: Of those that have ended, in the order of their ends.
        left_out: Those that were due and not begun, as too many were under way.
        stopping: Set for no more to be begun.
    """

    one: One
    lanes: int
    took: list[Took] = field(default_factory=list)
    left_out: int = 0
    stopping: bool = False

    async def run(self) -> None:
        """Begins actions until it is stopped, and waits for those under way.

        Raises:
            TimeoutError: They took five minutes and more.
        """
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                await self._begin_all(tasks)
                scope.deadline = anyio.current_time() + _DEADLINE_S
        if scope.cancelled_caught:
            raise TimeoutError(f"actions had no outcome {_DEADLINE_S:g} s after the last of them was begun")

    @abstractmethod
    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        """Begins actions until it is stopped."""

    async def _do(self, lane: int, due: float) -> None:
        overhead_s = await self.one(lane)
        self.took.append(Took(time.perf_counter() - due, overhead_s))


@dataclass(slots=True)
class ClosedLoad(ActionLoad):
    """One action after the other in each lane."""

    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        for lane in range(self.lanes):
            tasks.start_soon(self._repeat, lane)

    async def _repeat(self, lane: int) -> None:
        while not self.stopping:
            await self._do(lane, time.perf_counter())


@dataclass(slots=True)
class OpenLoad(ActionLoad):
    """Actions that come at random times of a seed's, whatever became of those before them.

    Attributes:
        rate: Mean of the actions a second.
        seed: Of the times.
    """

    rate: float = 1.0
    seed: int = 0
    _under_way: int = 0

    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        # Whoever is a second behind will not catch up, and all that waits must end in the end.
        most = max(self.lanes, round(self.rate))
        times, due, number = random.Random(self.seed), time.perf_counter(), 0
        while not self.stopping:
            due += times.expovariate(self.rate)
            await anyio.sleep(max(0.0, due - time.perf_counter()))
            if self._under_way >= most:
                self.left_out += 1
                continue
            self._under_way += 1
            tasks.start_soon(self._count, number % self.lanes, due)
            number += 1

    async def _count(self, lane: int, due: float) -> None:
        await self._do(lane, due)
        self._under_way -= 1


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
    rates = list(settings.open_loop)
    while rates:
        rate = rates.pop(0)
        progress(f"{settings.kind}: {rate} a second")
        load = OpenLoad(one, settings.open_lanes, rate=rate, seed=settings.seed)
        found.append(await _measure("open", rate, load, service, settings))
        # Once may be a stall of the machine.
        if settings.climb and not rates and sum(each.p99_ms >= CEILING_P99_MS for each in found[-2:]) < 2:
            rates = [round(rate * _STEEPNESS)]
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
