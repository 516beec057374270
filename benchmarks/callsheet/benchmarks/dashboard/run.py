"""Measures the views of a dashboard on a long journal, and the scheduler's CPU time with and without their readers."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import urlencode

import aiohttp
import anyio
import anyio.to_thread
from callsheet.benchmarks.dashboard.seeded import SeededTrajectory, write_journal
from callsheet.benchmarks.dashboard.settings import DashboardBenchSettings
from callsheet.benchmarks.dispatch.callsheet_load import CallsheetLoad
from callsheet.benchmarks.dispatch.loops import OpenLoad
from callsheet.benchmarks.measuring.actions import NotMeasurableError
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.processes import use_of
from callsheet.benchmarks.measuring.statistics import percentile
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from callsheet.client import Client, Job
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.options.temporary_directories import temporary_directory
from rich.table import Table

MOST_P99_MS = 300.0
MOST_MORE_CPU = 0.05
# An answer is shared for two seconds: later than that it is a new one.
_ROUND_S = 2.1
# A reader looks at one view after another, as often as pages refresh themselves.
_REFRESH_S = 3.0
_READY_S = 300.0
_LANES = 64
_WARM_UP_S = 2.0
_COLUMNS: tuple[Column, ...] = (("p50 ms", "p50_ms", ".1f"), ("p99 ms", "p99_ms", ".1f"), ("kB", "size_kb", ".1f"))

_OF_OBJECTS: Mapping[str, Callable[[SeededTrajectory], Mapping[str, object]]] = {
    "trajectory": lambda each: {"job": each.job_id, "trajectory": each.trajectory_id},
    "group": lambda each: {"job": each.job_id, "group": each.group_id},
    "step": lambda each: {"job": each.job_id, "version": each.version},
    "job": lambda each: {"job": each.job_id},
    "action": lambda each: {"job": each.job_id, "action": f"{each.trajectory_id}-0"},
    "trajectories": lambda each: {"job": each.job_id},
}
_VIEWS = ("stuck", "now", "engines", "what-if", *_OF_OBJECTS)


@dataclass(frozen=True, slots=True)
class ViewFigures:
    """How long a view took.

    Attributes:
        p50_ms: From the request to the last byte of the page.
        p99_ms: The same.
        size_kb: Of the largest page, in 1,000 bytes.
    """

    p50_ms: float
    p99_ms: float
    size_kb: float


@dataclass(frozen=True, slots=True)
class DashboardReport(BenchmarkReport):
    """What was found.

    Attributes:
        machine: What it ran on.
        views: By name.
        cpu_ms: Of the scheduler for an action, without readers and with them, in pairs.
        pages_per_s: That the readers got meanwhile.
    """

    machine: Mapping[str, Any]
    views: Mapping[str, ViewFigures]
    cpu_ms: Sequence[tuple[float, float]]
    pages_per_s: float

    @property
    def more_cpu(self) -> float:
        """What readers add to the scheduler's CPU time, as a part of it: the median of the pairs."""
        return median(readers / without for without, readers in self.cpu_ms) - 1.0

    @property
    def bars(self) -> Sequence[Bar]:
        """Every view is quick, and readers cost the scheduler little."""
        slowest = max(each.p99_ms for each in self.views.values())
        return [
            Bar("p99 of the slowest view, ms", slowest, at_most=MOST_P99_MS),
            Bar("CPU time that readers add to the scheduler's, as a part of it", self.more_cpu, at_most=MOST_MORE_CPU),
        ]

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {**asdict(self), "more_cpu": self.more_cpu}

    def tables(self) -> Iterator[Table | str]:
        """The views, and the load."""
        yield figures_table("Server time of the views", "view", _COLUMNS, self.views.items())
        pairs = ", ".join(f"{without:.3f} and {readers:.3f}" for without, readers in self.cpu_ms)
        yield f"CPU of the scheduler for an action, ms, without and with {self.pages_per_s:.1f} pages a second: {pairs}"


@dataclass(slots=True)
class _Readers:
    """Asks for views.

    Attributes:
        http: Asks the dashboard.
        objects: Trajectories that pages may be of.
        draw: Chooses among them.
        pages: That were read so far.
    """

    http: aiohttp.ClientSession
    objects: Sequence[SeededTrajectory]
    draw: random.Random
    pages: int = 0

    async def look(self, view: str) -> int:
        """Reads a view, of an object where it has one; returns its bytes.

        Raises:
            NotMeasurableError: It was refused.
        """
        query = _OF_OBJECTS[view](self.draw.choice(self.objects)) if view in _OF_OBJECTS else {}
        async with self.http.get(f"/{view}?{urlencode(query)}") as answer:
            page = await answer.read()
        if answer.status != 200:
            raise NotMeasurableError(f"the dashboard answered /{view} with {answer.status}: {page[:500]!r}")
        self.pages += 1
        return len(page)

    async def poll(self, start: float) -> None:
        """Reads one view after another, again and again."""
        await anyio.sleep(start)
        for view in itertools.cycle(_VIEWS):
            began = anyio.current_time()
            await self.look(view)
            await anyio.sleep(max(0.0, began + _REFRESH_S - anyio.current_time()))


async def run_dashboard_bench(settings: DashboardBenchSettings, progress: Progress = lambda _: None) -> DashboardReport:
    """Measures the dashboard of a scheduler that continues from a long journal.

    Args:
        settings: How large.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ProcessFailedError: A process did not start (inside an exception group).
        NotMeasurableError: A page was refused, or an action failed (inside an exception group).
    """
    draw = random.Random(settings.seed)
    with temporary_directory("callsheet-bench-") as directory:
        data_dir = directory / "callsheet"
        progress(f"writing a journal of {settings.live:,} live and {settings.ended:,} ended trajectories")
        write = partial(write_journal, data_dir, settings.live, settings.ended, seed=settings.seed, now=time.time())
        made = await anyio.to_thread.run_sync(write)
        progress("starting the service on it")
        stack_settings = StackSettings(data_dir, managers=(Role.NOOP,), dashboard="auto", ready_timeout_s=_READY_S)
        async with (
            local_stack(stack_settings) as stack,
            Client(stack.address) as client,
            await client.open_job("dispatch") as job,
            aiohttp.ClientSession(stack.dashboard_url, connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            readers = _Readers(http, made, draw)
            progress("reading each view")
            views = await _look_at_views(readers, settings.looks)
            cpu_ms, pages_per_s = await _compare(stack, job, readers, settings, progress)
    return DashboardReport(describe_machine(), views, cpu_ms, pages_per_s)


async def _look_at_views(readers: _Readers, looks: int) -> dict[str, ViewFigures]:
    took: dict[str, list[float]] = {view: [] for view in _VIEWS}
    sizes = dict.fromkeys(_VIEWS, 0)
    for view in _VIEWS:
        await readers.look(view)
    for _ in range(looks):
        began = anyio.current_time()
        for view in _VIEWS:
            asked = time.perf_counter()
            sizes[view] = max(sizes[view], await readers.look(view))
            took[view].append((time.perf_counter() - asked) * 1e3)
        await anyio.sleep(max(0.0, began + _ROUND_S - anyio.current_time()))
    return {
        view: ViewFigures(percentile(each, 50.0), percentile(each, 99.0), sizes[view] / 1e3)
        for view, each in took.items()
    }


async def _compare(
    stack: Stack, job: Job, readers: _Readers, settings: DashboardBenchSettings, progress: Progress
) -> tuple[list[tuple[float, float]], float]:
    """CPU milliseconds of the scheduler for an action, without readers and with them, and pages a second."""
    load = CallsheetLoad(job, f"{settings.seed:08x}")

    async def one(_: int) -> float:
        await load.one()
        return 0.0

    keeps_coming = OpenLoad(one, _LANES, rate=settings.rate, seed=settings.seed)

    async def cpu_ms() -> float:
        await anyio.sleep(_WARM_UP_S)
        used, ended = use_of(stack.pid(Role.SCHEDULER)).cpu_s, len(keeps_coming.took)
        await anyio.sleep(settings.seconds)
        used, ended = use_of(stack.pid(Role.SCHEDULER)).cpu_s - used, len(keeps_coming.took) - ended
        return used * 1e3 / max(1, ended)

    pairs, pages = [], readers.pages
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeps_coming.run)
        for repetition in range(1, settings.repetitions + 1):
            progress(
                f"the load without {settings.clients} readers and with them, {repetition} of {settings.repetitions}"
            )
            without = await cpu_ms()
            async with anyio.create_task_group() as reading:
                for number in range(settings.clients):
                    reading.start_soon(readers.poll, _REFRESH_S * number / settings.clients)
                pairs.append((without, await cpu_ms()))
                reading.cancel_scope.cancel()
        keeps_coming.stopping = True
    return pairs, (readers.pages - pages) / (settings.repetitions * (settings.seconds + _WARM_UP_S))
