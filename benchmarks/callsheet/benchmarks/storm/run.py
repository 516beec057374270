"""Storms of resets: many trajectories begin at once on a scheduler and managers that have just been started."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
from callsheet.benchmarks.measuring.actions import sandbox_demand
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.processes import tree_cpu_s
from callsheet.benchmarks.measuring.statistics import percentile, rounded
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from callsheet.benchmarks.storm.settings import StormSettings
from callsheet.client import Client, Job, Succeeded
from callsheet.managers.supervision.processes import ProcessSpec, command_module, run_process
from callsheet.options.temporary_directories import temporary_directory
from rich.table import Table

# What storms of resets found.
# Creates a CPU second on several hosts by those on one: they share this machine's cores, so nothing else compares.
LEAST_SHARE = 0.9
_COLUMNS: tuple[Column, ...] = (
    ("images", "images", "d"),
    ("hosts", "hosts", "d"),
    ("p50 s", "p50_s", ".2f"),
    ("p99 s", "p99_s", ".2f"),
    ("all s", "all_s", ".2f"),
    ("failed", "failed", "d"),
    ("creates a CPU s", "creates_per_cpu_s", ".1f"),
)


@dataclass(frozen=True, slots=True)
class StormResult:
    """One storm on a stack of its own, whose images no sandbox had yet.

    Attributes:
        resets: At once, each of a trajectory of its own.
        images: They begin with, in turn.
        hosts: Managers of sandboxes.
        p50_s: Seconds from a reset's submit to its outcome.
        p99_s: The same.
        all_s: Until the last outcome.
        failed: Resets that did not succeed.
        creates_per_cpu_s: Those that did, by the CPU seconds of scheduler, managers and sandboxes.
    """

    resets: int
    images: int
    hosts: int
    p50_s: float
    p99_s: float
    all_s: float
    failed: int
    creates_per_cpu_s: float


@dataclass(frozen=True, slots=True)
class StormReport(BenchmarkReport):
    """Results of all storms."""

    machine: dict[str, Any]
    results: tuple[StormResult, ...]

    @property
    def bars(self) -> Sequence[Bar]:
        """None fails, and several hosts cost next to nothing over one."""
        bars = [Bar("failed resets", float(sum(each.failed for each in self.results)), at_most=0.0)]
        alone = {(each.resets, each.images): each.creates_per_cpu_s for each in self.results if each.hosts == 1}
        for each in self.results:
            if each.hosts > 1 and (each.resets, each.images) in alone:
                share = each.creates_per_cpu_s / alone[each.resets, each.images]
                name = f"{each.resets:,} resets, {each.images} images: creates a CPU second, {each.hosts} hosts by one"
                bars.append(Bar(name, share, at_least=LEAST_SHARE))
        return bars

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {"machine": self.machine, "results": [rounded(asdict(each)) for each in self.results]}

    def tables(self) -> Iterator[Table]:
        """One row a storm."""
        yield figures_table("Resets at once", "resets", _COLUMNS, [(f"{each.resets:,}", each) for each in self.results])


_LIBRARY = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")
_GRACE_S = 60.0


async def run_storm(settings: StormSettings, progress: Progress = lambda _: None) -> StormReport:
    """Runs every storm on a stack of its own.

    Args:
        settings: How large.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ProcessFailedError: A process did not start (inside an exception group).
    """
    results = []
    with temporary_directory("callsheet-storm-") as directory:
        store = Path(directory, "images")
        await anyio.to_thread.run_sync(_make_images, store, max(settings.images))
        for number, size in enumerate(product(settings.resets, settings.images, settings.hosts)):
            progress("{:,} resets with {} images on {} hosts".format(*size))
            results.append(await _storm(size, settings.memory_mib, store, Path(directory, f"stack-{number}")))
    return StormReport(describe_machine(), tuple(results))


def _make_images(store: Path, count: int) -> None:
    """Makes root file systems that are just large enough to begin with: a shell and its libraries."""
    shell = Path(shutil.which("sh") or "/bin/sh").resolve()
    listed = subprocess.run(["ldd", shell], check=True, capture_output=True, text=True).stdout
    for number in range(count):
        root = store / f"image-{number}"
        for source, place in ((str(shell), "bin/sh"), *((path, path.lstrip("/")) for path in _LIBRARY.findall(listed))):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(source).resolve(), root / place)
        (root / "image-name").write_text(root.name)


async def _storm(size: tuple[int, int, int], memory_mib: int, store: Path, directory: Path) -> StormResult:
    resets, images, hosts = size
    took: list[float] = []
    failed = 0
    demand = sandbox_demand(memory_mib)

    async def reset(job: Job, number: int) -> None:
        nonlocal failed
        trajectory = job.trajectory(f"t{number}")
        await trajectory.open()
        outcome = await trajectory.env_reset(image=f"image-{number % images}", demand=demand)
        took.append(time.perf_counter() - began)
        failed += not isinstance(outcome, Succeeded)

    async with (
        _stack(hosts, memory_mib * resets, store, directory) as (address, processes),
        Client(address) as client,
        await client.open_job("storm") as job,
    ):
        before = tree_cpu_s(processes)
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(resets):
                tasks.start_soon(reset, job, number)
        cpu_s = await anyio.to_thread.run_sync(tree_cpu_s, processes) - before
    p50_s, p99_s = (percentile(took, percent) for percent in (50.0, 99.0))
    return StormResult(resets, images, hosts, p50_s, p99_s, max(took), failed, (resets - failed) / cpu_s)


@asynccontextmanager
async def _stack(
    hosts: int, memory_mib: int, store: Path, directory: Path
) -> AsyncIterator[tuple[str, list[psutil.Process]]]:
    """Runs a scheduler and managers; yields its address and all of them."""
    async with AsyncExitStack() as exits:

        async def start(name: str, *arguments: str) -> psutil.Process:
            own = ("--data-dir", str(directory / name), "--log-format", "json")
            spec = ProcessSpec(name, command_module(), (*arguments, *own), log_path=directory / f"{name}.log")
            process = await exits.enter_async_context(run_process(spec, _GRACE_S))
            facts.update(process.facts)
            return psutil.Process(process.pid)

        facts: dict[str, str] = {}
        processes = [await start("scheduler", "scheduler", "--listen", "127.0.0.1:0")]
        address = facts["address"]
        for number in range(hosts):
            name = f"host-{number}"
            arguments = ("--scheduler", address, "--node-id", name, "--memory-mib", str(memory_mib))
            processes.append(await start(name, "manager", "sandbox", *arguments, "--images", str(store)))
        yield address, processes
