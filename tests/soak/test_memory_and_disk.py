"""What a scheduler keeps under a long mixed load: memory and disk, beside what its settings allow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio
import anyio.to_thread
import psutil
import psycopg
import pytest
from callsheet.client import Client, Job
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.options.common import LogLevel

from tests.soak.mixed_load import MixedLoad
from tests.support.measurements import Measured
from tests.support.servers import postgres_server

MIB = 1024 * 1024
ALL_HAPPENED = {"small", "large", "again", "forgotten", "trajectories", "groups", "gone", "jobs", "unread"}
STREAM_BYTES = 64 * MIB
# Measured: what a finished action takes in memory without its outcome, and its row in a journal without it.
_FINISHED_BYTES_EACH = 1_000
_ROW_BYTES = 2_000
# Of what is forgotten; an entry has 32 bytes, and arrays grow ahead of what is in them.
_FORGOTTEN_BYTES_EACH = 50
# What an allocator does not give back, messages that gRPC holds, and the predictors.
_SLACK = 128 * MIB
_WRITE_AHEAD = 64 * MIB
# Free pages that a file may keep, at most a third of what is used; dead rows until the next vacuum are at most as much.
_FREE_PART = {"sqlite": 4 / 3, "postgresql": 3.0}
# Trajectories that are open, or whose group is.
_OPEN = 64
# What may change between the last thirds without being a trend.
_STEADY, _STEADY_BYTES = 1.10, 24 * MIB


@dataclass(frozen=True)
class Limits:
    """The scheduler's settings: the shorter the load the smaller, so that it reaches them after a tenth of its time.

    Attributes:
        kept_s: Seconds for which finished and closed actions are kept, and closed trajectories.
        finished_actions: Most finished actions and closed trajectories.
        finished_bytes: Most bytes of their outcomes and specs.
    """

    kept_s: float
    finished_actions: int
    finished_bytes: int

    @property
    def arguments(self) -> list[str]:
        """Arguments of the command line."""
        values = {
            "finished-actions": self.finished_actions,
            "finished-actions-bytes": self.finished_bytes,
            "finished-actions-s": self.kept_s,
            "closed-actions": 1_000,
            "closed-actions-s": self.kept_s,
            "job-grace": 1,
            "expired-job-lifetime": 2,
            "max-open-bytes": STREAM_BYTES,
            "max-job-open-bytes": STREAM_BYTES,
            "max-pending-bytes": STREAM_BYTES,
            "max-unread-bytes": STREAM_BYTES,
        }
        return [
            f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}" for name, value in values.items()
        ]


@dataclass(frozen=True)
class Look:
    """What a scheduler has at a time.

    Attributes:
        kept: Finished actions and closed trajectories of the long job.
        forgotten: Actions, trajectories and groups of it of which no more than the id need be left.
        rss: Bytes of memory.
        disk: Bytes of the data directory, and of the database if that is PostgreSQL's.
    """

    kept: int
    forgotten: int
    rss: int
    disk: int


_ALL_HAPPENED_S = 150.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, str | None]]:
    """The kind of database, and its URL unless it is a file."""
    if request.param == "sqlite":
        yield "sqlite", None
    else:
        # By default it is a minute between vacuums, which a short load sees too rarely.
        with postgres_server("autovacuum_naptime=1") as server:
            yield "postgresql", server.new_database()


async def test_memory_and_disk_stay_within_the_settings(
    database: tuple[str, str | None], nightly: bool, measured: Measured, tmp_path: Path
) -> None:
    kind, url = database
    takes_s, looks_at = (300, 20) if nightly else (6, 6)
    limits = Limits(max(takes_s / 10, 1.0), max(takes_s * 15, 100), max(takes_s * MIB // 5, 2 * MIB))
    arguments: dict[str, list[str]] = {
        Role.SCHEDULER: [*limits.arguments, *(["--database-url", url] if url else [])],
        Role.NOOP: ["--echo"],
    }
    settings = StackSettings(tmp_path, managers=(Role.NOOP,), arguments=arguments, log_level=LogLevel.WARNING)
    async with local_stack(settings) as stack, Client(stack.address) as client:
        job = await client.open_job("long")
        load = MixedLoad(stack.address, job, actions_per_s=200 if nightly else 100, unread_s=limits.kept_s)
        looks = [await look(stack, job, load, tmp_path, url)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            began = anyio.current_time()
            while len(looks) <= looks_at or not load.done.keys() >= ALL_HAPPENED:
                waited_s = anyio.current_time() - began - takes_s
                assert waited_s < _ALL_HAPPENED_S, f"never happened: {ALL_HAPPENED - load.done.keys()}"
                await anyio.sleep(takes_s / looks_at)
                looks.append(await look(stack, job, load, tmp_path, url))
            tasks.cancel_scope.cancel()
    most_memory, most_disk = most_allowed(kind, limits, looks)
    measured(
        f"{load.done['small'] + load.done['large']:,} actions, {load.done['trajectories']:,} trajectories, "
        f"{load.done['jobs']:,} short jobs: at most {max(each.rss for each in looks) // MIB} MiB of memory "
        f"({most_memory // MIB} allowed) and {max(each.disk for each in looks) // MIB} on disk ({most_disk // MIB})"
    )
    assert load.failed == {}
    assert max(each.kept for each in looks) <= limits.finished_actions + _OPEN
    assert max(each.rss for each in looks) <= most_memory
    assert max(each.disk for each in looks) <= most_disk
    if nightly:
        forgotten = looks[-1].forgotten * _FORGOTTEN_BYTES_EACH
        assert growth([each.rss for each in looks]) <= _STEADY_BYTES + forgotten
        assert growth([each.disk for each in looks]) <= _STEADY_BYTES + forgotten


def most_allowed(kind: str, limits: Limits, looks: Sequence[Look]) -> tuple[int, int]:
    """Bytes of memory and on disk that the settings allow; the first look is of before the load."""
    forgotten = looks[-1].forgotten * _FORGOTTEN_BYTES_EACH
    memory = 3 * STREAM_BYTES + limits.finished_actions * _FINISHED_BYTES_EACH + forgotten
    live = limits.finished_bytes + STREAM_BYTES + limits.finished_actions * _ROW_BYTES + forgotten
    disk = int(live * _FREE_PART[kind]) + _WRITE_AHEAD
    return looks[0].rss + memory + _SLACK, looks[0].disk + disk + _SLACK


def growth(sizes: Sequence[int]) -> float:
    """By how much the last third is above what may change from the second third."""
    third = len(sizes) // 3
    return median(sizes[2 * third :]) - _STEADY * median(sizes[third : 2 * third])


async def look(stack: Stack, job: Job, load: MixedLoad, data_dir: Path, url: str | None) -> Look:
    """Looks at a scheduler, its files and its database."""
    # Before what is kept of them, so that no trajectory is missed.
    gone = load.done["trajectories"] + load.done["groups"]
    trajectories, status = await job.trajectories(closed=True), await job.status()
    closed = sum(each.end is not None for each in trajectories)
    return Look(
        kept=status.actions.get("succeeded", 0) - status.forgotten_actions + closed,
        forgotten=status.forgotten_actions + gone,
        rss=psutil.Process(stack.pid(Role.SCHEDULER)).memory_info().rss,
        disk=await anyio.to_thread.run_sync(bytes_on_disk, data_dir, url),
    )


def bytes_on_disk(directory: Path, url: str | None) -> int:
    """Bytes of a directory, and of a database without its write-ahead log.

    A file that jobs have links to counts once, and one that goes meanwhile not at all.
    """
    sizes: dict[int, int] = {}
    # Not `rglob`, which fails for a directory that goes meanwhile.
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            with suppress(FileNotFoundError):
                stat = os.lstat(os.path.join(parent, name))
                sizes[stat.st_ino] = stat.st_blocks * 512
    total = sum(sizes.values())
    if url is not None:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        total += int(row[0])
    return total
