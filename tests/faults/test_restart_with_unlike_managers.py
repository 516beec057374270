"""The scheduler is killed under resets, and two managers of one role serve different images: no reset fails for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import anyio.abc
import pytest
from callsheet.client import Client, ClientOptions, Job, Trajectory, TrajectoryEnd
from callsheet.client.admin import AdminClient

from tests.support.clusters import Cluster, Part, open_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(320)]
_DEADLINE_S = 280.0
_KILLS = 2  # each manager is late once
_GROUPS_A_KILL = 4
_SIZE = 4
_IMAGES = ("debian", "ubuntu")
_POLL_S = 0.02


class Load:
    """Groups whose rollouts reset sandboxes, the groups' images by turns."""

    def __init__(self, job: Job, tasks: anyio.abc.TaskGroup) -> None:
        self.ended: list[TrajectoryEnd] = []
        self.groups = 0
        self._job = job
        self._tasks = tasks

    def begin(self) -> None:
        """Begins some groups."""
        for _ in range(_GROUPS_A_KILL):
            self._tasks.start_soon(self._group, self.groups)
            self.groups += 1

    async def _group(self, number: int) -> None:
        """One group; a failed reset abandons its member, and a refused one ends the block."""
        image = _IMAGES[number % 2]

        async def rollout(trajectory: Trajectory) -> None:
            for _ in range(3):
                (await trajectory.env_reset(image=image, expected_duration_s=0.05)).unwrap()

        async with self._job.group(f"g{number}", size=_SIZE) as group:
            group.start(rollout)
            async for member in group:
                self.ended.append(member.end)


async def test_no_reset_fails_for_a_manager_that_is_not_back_yet(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        # `up` announces its roles, as here.
        async with open_cluster(tmp_path, managers=0, lease_s=30.0, options=("--expect", "sandbox")) as cluster:
            managers = [await _add_manager(cluster, image) for image in _IMAGES]
            options = ClientOptions(backoff_max_s=0.1)
            async with (
                Client(cluster.address, options) as client,
                await client.open_job("resets") as job,
                AdminClient(cluster.address) as admin,
                anyio.create_task_group() as tasks,
            ):
                load = Load(job, tasks)
                for kill in range(_KILLS):
                    load.begin()
                    late = managers[kill % 2]
                    await _kill_scheduler(cluster, admin, job, load, late)
    assert load.ended == [TrajectoryEnd.COMPLETED] * load.groups * _SIZE


async def _kill_scheduler(cluster: Cluster, admin: AdminClient, job: Job, load: Load, late: Part) -> None:
    """Kills it, and begins more groups once one manager is back; the other one comes when their resets wait."""
    os.kill(late.process.pid, signal.SIGSTOP)
    try:
        await cluster.scheduler.kill()
        await cluster.scheduler.start()
        while not (await admin.status()).managers:  # noqa: ASYNC110 - the scheduler tells nobody of it
            await anyio.sleep(_POLL_S)
        load.begin()
        wanted = _SIZE * _GROUPS_A_KILL // 2
        while (await job.status()).actions.get("queued", 0) < wanted:  # noqa: ASYNC110 - see above
            await anyio.sleep(_POLL_S)
    finally:
        os.kill(late.process.pid, signal.SIGCONT)


async def _add_manager(cluster: Cluster, image: str) -> Part:
    log = str(cluster.directory / f"starts-{image}.jsonl")
    services = ("sandbox", f"sandbox:{image}")
    part = cluster.add(image, "tests.support.logging_manager", cluster.address, image, log, *services)
    await part.start()
    return part
