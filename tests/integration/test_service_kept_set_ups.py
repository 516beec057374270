"""Set-ups that are kept, through the real service: resets go to the node that has run theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Command, Demand, EnvResetResult, Job
from callsheet.managers.runtime import run_manager
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import manager_service_pb2

from tests.support.raw_service import running_service

pytestmark = pytest.mark.anyio

SMALL = Demand(cpu=1, memory=64)


@asynccontextmanager
async def running_manager(address: str, name: str, directory: Path) -> AsyncIterator[SandboxExecutor]:
    """A manager of plain processes, registered as a node of its own."""
    settings = SandboxSettings(name, directory / name, isolation=Isolation.NONE, use_control_groups=False)
    cores = manager_service_pb2.NumaNode(cores=sorted(settings.cores))
    node = manager_service_pb2.NodeSpec(node_id=name, capacity={"memory": 4096}, numa_nodes=[cores])
    executor = build_sandbox_executor(settings)
    stop = anyio.Event()
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(
                partial(run_manager, ManagerSettings(address, name, node, handle_signals=False), executor, stop=stop)
            )
            yield executor
            stop.set()
    finally:
        with anyio.CancelScope(shield=True):
            await executor.close()


async def reset(job: Job, name: str, set_up: Command) -> EnvResetResult:
    """Opens a trajectory, which stays, with a set-up."""
    trajectory = job.trajectory(name)
    await trajectory.open()
    return (await trajectory.env_reset(set_up=set_up, demand=SMALL)).unwrap()


async def test_resets_go_where_their_set_up_has_been_run(tmp_path: Path) -> None:
    made_here = Command.shell("date +%s%N > made; echo said")
    made_there = Command.shell("date +%s%N > other; echo so")
    async with (
        running_service(SchedulerSettings(tmp_path / "scheduler", listen="127.0.0.1:0")) as service,
        running_manager(service.address, "north", tmp_path) as north,
        running_manager(service.address, "south", tmp_path) as south,
        Client(service.address) as client,
    ):
        job = await client.open_job("job")
        first = await reset(job, "first", made_here)
        keeper, other = (north, south) if north.sandboxes() else (south, north)
        assert not first.set_up_reused
        # By the number of trajectories alone, the second one would go to the other node.
        second = await reset(job, "second", made_here)
        assert second.set_up_reused
        assert second.set_up is not None
        assert second.set_up.stdout == b"said\n"
        assert (len(keeper.sandboxes()), len(other.sandboxes())) == (2, 0)
        assert not (await reset(job, "third", made_there)).set_up_reused
        assert (await reset(job, "fourth", made_there)).set_up_reused
        assert (len(keeper.sandboxes()), len(other.sandboxes())) == (2, 2)
