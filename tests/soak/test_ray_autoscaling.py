"""A burst on Ray: its autoscaler adds machines for the fleet's nodes, and takes them away when they have left."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Demand, Hold, Job, Resource

from tests.support.fleets import ONE_NODE, on_ray, running, wait_for, wait_until_nothing_is_left
from tests.support.measurements import Measured
from tests.support.ray_cluster import ray_cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.anyio]

_MACHINES = 3
_DEADLINE_S = 180.0
# As much as a node has, and for as long as its trajectory lives.
_A_CORE = Demand(Resource("cpu", 1, hold=Hold.TRAJECTORY), Resource("memory", 64, hold=Hold.TRAJECTORY))


async def burst(job: Job) -> None:
    """Has as many trajectories with a sandbox at one time as all machines hold, and not one more."""
    here, all_are_here = anyio.Semaphore(0), anyio.Event()

    async def one(number: int) -> None:
        async with job.trajectory(f"t-{number}") as trajectory:
            (await trajectory.env_reset(demand=_A_CORE)).unwrap()
            here.release()
            await all_are_here.wait()
            (await trajectory.env_step("true", demand=Demand())).unwrap()

    async with anyio.create_task_group() as tasks:
        for number in range(_MACHINES):
            tasks.start_soon(one, number)
        for _ in range(_MACHINES):
            await here.acquire()
        all_are_here.set()


async def test_a_burst_grows_the_cluster_to_three_machines_and_back(measured: Measured, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    role = f'[roles.sandbox]\nnodes = [1, {_MACHINES}]\narguments = ["--share-cores", "reserved"]\n{ONE_NODE}'
    fleet.write_text(f"patience_s = 1\ncooldown_s = 3\n{role}")
    with ray_cluster(1, most=_MACHINES) as cluster:
        async with running(on_ray(cluster), tmp_path, "--fleet", str(fleet)) as up:
            await up.wait_for_nodes(1)
            assert cluster.books()["cores"] == 1
            began = time.monotonic()
            with anyio.fail_after(_DEADLINE_S):
                async with Client(up.address) as client, await client.open_job("burst") as job:
                    await burst(job)
                grown_s = time.monotonic() - began
                assert cluster.books()["cores"] == _MACHINES
                await up.wait_for_nodes(1)

                async def is_one_machine() -> bool:
                    return cluster.books() == {"cores": 1, "free": 0, "groups": 1}

                await wait_for(is_one_machine)
            shrunk_s = time.monotonic() - began - grown_s
            assert [each["phase"] for each in up.fleet()] == ["serving"]
        await wait_until_nothing_is_left(cluster, tmp_path, {"cores": 1, "free": 1, "groups": 0})
    measured(f"one machine to {_MACHINES} in {grown_s:.0f} s, and back to one {shrunk_s:.0f} s after the burst")
