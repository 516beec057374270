"""Runs groups against a real scheduler and a manager whose environments only take time, and kills trainers."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import anyio
from callsheet.benchmarks.groups import trainer_process
from callsheet.benchmarks.groups.load import GroupLoad
from callsheet.benchmarks.groups.report import BatchTimes, GroupsReport, KilledTrainers
from callsheet.benchmarks.groups.settings import GroupsBenchSettings
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.client import Client
from callsheet.deploy.processes import ProcessSpec, command_module, run_process

_QUIET = ("--log-level", "warning")
_DEADLINE_S = 300.0
_LEASE_S = 1.0
_KILLS = 2
_GROUPS_OF_KILLED = 6


async def run_groups_bench(settings: GroupsBenchSettings, progress: Progress = lambda _: None) -> GroupsReport:
    """Measures batches with a quorum and without, then kills trainers.

    Args:
        settings: The load.
        progress: Told, as a sentence, how it goes.

    Raises:
        ProcessFailedError: A process did not start.
        TimeoutError: A batch did not come.
    """
    with tempfile.TemporaryDirectory(prefix="callsheet-groups-") as made:
        directory = Path(made)
        async with _running(directory) as address:
            quorum = await _measure(f"quorum {settings.quorum}", settings.quorum, address, settings, progress)
            without = await _measure("no quorum", settings.size, address, settings, progress)
            progress("killing trainers")
            killed = await _kill_trainers(address, directory, settings)
    return GroupsReport(quorum, without, killed, asdict(settings), describe_machine())


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[str]:
    arguments = ["scheduler", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", *_QUIET]
    scheduler_spec = ProcessSpec("scheduler", command_module(), arguments, {}, directory / "scheduler.log")
    async with run_process(scheduler_spec) as scheduler:
        address = scheduler.facts["address"]
        manager = ["manager", "noop", "--scheduler", address, *_QUIET]
        spec = ProcessSpec("noop manager", command_module(), manager, log_path=directory / "manager.log")
        async with run_process(spec):
            yield address


async def _measure(
    name: str, quorum: int, address: str, settings: GroupsBenchSettings, progress: Progress
) -> BatchTimes:
    found = {}
    counts: Counter[str] = Counter()
    for faults in (False, True):
        progress(f"{name}, {'with' if faults else 'without'} faults")
        async with Client(address) as client, await client.open_job(f"{name} {faults}") as job:
            load = GroupLoad(job, settings, quorum, faults=faults)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run)
                times = [time.monotonic()]
                for _ in range(settings.batches + 1):
                    with anyio.fail_after(_DEADLINE_S):
                        size = settings.batch_groups * quorum
                        batch = await job.take_batch(at_least=size, at_most=size, wait_s=_DEADLINE_S)
                        await anyio.sleep(settings.train_s)  # the optimiser step; rollouts go on meanwhile
                        await batch.acknowledge()
                    times.append(time.monotonic())
                tasks.cancel_scope.cancel()
            counts += load.counts
        found[faults] = tuple(after - before for before, after in itertools.pairwise(times[1:]))
    return BatchTimes(name, found[False], found[True], counts["hung"], counts["crashed"])


async def _kill_trainers(address: str, directory: Path, settings: GroupsBenchSettings) -> KilledTrainers:
    """Rollouts finish beside trainers of which the first ones are killed with a batch in hand."""
    log = directory / "trainers.log"
    log.touch()
    kills = 0
    async with Client(address) as client, await client.open_job("killed trainers") as job:
        load = GroupLoad(job, settings, settings.quorum, faults=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run, _GROUPS_OF_KILLED)
            for _ in range(_KILLS):
                kills += await _trainer(address, job.job_id, settings, log, kill=True) == -signal.SIGKILL
        completed = [each for group in await job.groups() for each in group.completed]
        # Twice: what the last one killed had comes back once its lease has ended.
        while await job.buffered():
            await _trainer(address, job.job_id, settings, log, kill=False)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    acknowledged = Counter(each for line in lines for each in line.get("acknowledged", ()))
    return KilledTrainers(len(completed), kills, acknowledged)


async def _trainer(address: str, job_id: str, settings: GroupsBenchSettings, log: Path, *, kill: bool) -> int:
    arguments = [address, job_id, str(settings.quorum * 2), str(_LEASE_S), str(log), *(["kill"] if kill else [])]
    command = [sys.executable, "-m", trainer_process.__name__, *arguments]
    with anyio.fail_after(_DEADLINE_S):
        done = await anyio.run_process(command, check=False, stdout=None, stderr=None)
    return done.returncode
