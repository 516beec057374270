"""Runs a soak: real processes, one database after another."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import psutil
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.soak.bounds import SoakLimits, SoakSample, findings
from callsheet.benchmarks.soak.databases import database_bytes, private_postgresql
from callsheet.benchmarks.soak.load import SoakLoad
from callsheet.benchmarks.soak.report import DatabaseSoak, SoakReport
from callsheet.benchmarks.soak.settings import POSTGRESQL, SoakSettings
from callsheet.client import Client, Job
from callsheet.deploy.processes import ProcessSpec, command_module, run_process

_QUIET: Final = ("--log-level", "warning")


@dataclass(frozen=True, slots=True)
class _Service:
    """A running scheduler with a manager.

    Attributes:
        url: Of its database; None for SQLite.
    """

    address: str
    pid: int
    data_dir: Path
    url: str | None


async def run_soak(settings: SoakSettings, progress: Progress = lambda _: None) -> SoakReport:
    """Soaks a scheduler on each of the databases.

    Args:
        settings: How long, and how hard.
        progress: Told, as a sentence, how it goes.

    Raises:
        NoDatabaseError: There is no PostgreSQL.
        ProcessFailedError: A process did not start.
    """
    part_s = settings.duration_s / len(settings.databases)
    soaks = [await _soak(database, part_s, settings, progress) for database in settings.databases]
    return SoakReport(tuple(soaks), describe_machine())


async def _soak(database: str, part_s: float, settings: SoakSettings, progress: Progress) -> DatabaseSoak:
    limits = SoakLimits.of(part_s)
    with ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="callsheet-soak-")))
        url = (
            exits.enter_context(private_postgresql(naptime_s=max(round(part_s / 30), 1)))
            if database == POSTGRESQL
            else None
        )
        progress(f"{database}: starting")
        async with _running(directory, url, limits) as service, Client(service.address) as client:
            job = await client.open_job("long")
            load = SoakLoad(
                service.address,
                job,
                actions_per_s=settings.actions_per_s,
                unread_sessions=settings.unread_sessions,
                unread_s=limits.kept_s,
                seed=settings.seed,
            )
            began = time.monotonic()
            samples = [await _look(service, job, load, began)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run)
                for number in range(1, settings.samples + 1):
                    await anyio.sleep(max(began + part_s * number / settings.samples - time.monotonic(), 0.0))
                    samples.append(await _look(service, job, load, began))
                    progress(f"{database}: {_short(samples[-1])}")
                tasks.cancel_scope.cancel()
    return DatabaseSoak(database, tuple(samples), limits, load.counts, tuple(findings(database, limits, samples)))


@asynccontextmanager
async def _running(directory: Path, url: str | None, limits: SoakLimits) -> AsyncIterator[_Service]:
    data_dir = directory / "data"
    arguments = ["scheduler", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *_QUIET]
    arguments += ["--database-url", url] if url is not None else []
    log = directory / "scheduler.log"
    async with run_process(ProcessSpec("scheduler", command_module(), arguments, limits.environment, log)) as scheduler:
        address = scheduler.facts["address"]
        manager = ["manager", "noop", "--scheduler", address, "--echo", *_QUIET]
        async with run_process(
            ProcessSpec("noop manager", command_module(), manager, log_path=directory / "manager.log")
        ):
            yield _Service(address, scheduler.pid, data_dir, url)


async def _look(service: _Service, job: Job, load: SoakLoad, began: float) -> SoakSample:
    # Before what is kept of them, so that no trajectory is missed.
    gone = load.counts.trajectories + load.counts.groups
    status, trajectories = await job.status(), len(await job.trajectories(closed=True))
    return SoakSample(
        at_s=time.monotonic() - began,
        actions=load.counts.actions,
        forgotten=status.forgotten_actions + gone,
        trajectories=trajectories,
        rss=psutil.Process(service.pid).memory_info().rss,
        directory=await anyio.to_thread.run_sync(_directory_bytes, service.data_dir),
        database=await anyio.to_thread.run_sync(database_bytes, service.url) if service.url is not None else 0,
    )


def _directory_bytes(directory: Path) -> int:
    """Bytes on disk; a file that jobs have links to counts once, and one that goes meanwhile not at all."""
    sizes: dict[int, int] = {}
    for path in directory.rglob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        sizes[stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())


def _short(sample: SoakSample) -> str:
    mib = 1024 * 1024
    disk = f"{sample.disk / mib:.0f} MiB on disk"
    return f"{sample.at_s:.0f} s, {sample.actions} actions, {sample.rss / mib:.0f} MiB of memory, {disk}"
