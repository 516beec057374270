"""What a node books for real sandboxes: what they hold, after a restart of the scheduler too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import ceil

import aiohttp
import anyio
import pytest
from callsheet.client import Client, Command, Demand, EnvStep, Hold, Resource, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ManagerStatus
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.settings import Isolation

from tests.support.e2b_servers import E2bCaller, e2b_process
from tests.support.sandboxes import require_bubblewrap
from tests.support.stack_processes import wait_serving
from tests.support.swerex_servers import facade_process, runtime_at, until_alive
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
_DEADLINE_S = 100.0
_NODE_MIB = 2048


async def _manager_with_sandboxes(admin: AdminClient, count: int) -> ManagerStatus:
    """The one manager, once it is there with so many sandboxes."""
    while True:
        managers = (await admin.status()).managers
        if managers and managers[0].connected and managers[0].sandboxes == count:
            return managers[0]
        await anyio.sleep(0.05)


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A scheduler, and a node whose sandboxes have memory by need."""
    require_bubblewrap()
    layout = probe_layout()
    if layout is None or "memory" not in layout.controllers:
        pytest.skip("no control groups with a memory controller can be made here")
    settings = StackSettings(
        tmp_path_factory.mktemp("stack"),
        managers=(Role.SANDBOX,),
        cpus=1,
        memory_mib=_NODE_MIB,
        given={"isolation": Isolation.BUBBLEWRAP},
    )
    async with local_stack(settings) as stack:
        yield stack


@pytest.fixture
async def stack(shared: Stack) -> AsyncIterator[Stack]:
    """The node, without the sandboxes of an earlier test."""
    with anyio.fail_after(_DEADLINE_S):
        async with AdminClient(shared.address) as admin:
            await _manager_with_sandboxes(admin, 0)
        yield shared


async def test_a_node_books_what_its_sandboxes_hold(stack: Stack) -> None:
    async with (
        Client(stack.address) as client,
        AdminClient(stack.address) as admin,
        await client.open_job("job") as job,
        job.trajectory("by-need") as by_need,
        job.trajectory("sure") as sure,
    ):
        assert isinstance(await sure.env_reset(memory="guaranteed"), Succeeded)
        demand = (await _manager_with_sandboxes(admin, 1)).sandbox_memory_mib["demand"]
        assert isinstance(await by_need.env_reset(), Succeeded)
        assert isinstance(await by_need.env_step(Command.argv("true")), Succeeded)
        told = (await _manager_with_sandboxes(admin, 2)).sandbox_memory_mib
        holds = told["held"] - demand
        assert 0 < holds < demand // 2
        assert (told["demand"], told["booked"]) == (2 * demand, demand + holds + ceil((demand - holds) / 5))
        assert (await admin.status()).nodes[0].free["memory"] == _NODE_MIB - told["booked"]

        killed = stack.pid(Role.SCHEDULER)
        stack.supervisor(Role.SCHEDULER).kill()
        await wait_serving(stack, Role.SCHEDULER, other_than=killed)
        async with AdminClient(stack.address) as again:
            assert (await _manager_with_sandboxes(again, 2)).sandbox_memory_mib == told
            assert isinstance(await by_need.env_step(Command.argv("true")), Succeeded)


async def test_the_status_counts_what_waits_for_memory_now(stack: Stack) -> None:
    """Two that may have 1,100 MiB each on 2 GiB, one of which has it for long."""

    async def waiting(admin: AdminClient, count: int) -> None:
        await until_so(
            lambda: _manager_with_sandboxes(admin, 2), lambda it: it.waiting_for_memory == count, every_s=0.05
        )

    demand = Demand(Resource("memory", 1100, hold=Hold.TRAJECTORY), cpu=1)
    async with (
        Client(stack.address) as client,
        AdminClient(stack.address) as admin,
        await client.open_job("job") as job,
        job.trajectory("long") as long,
        job.trajectory("waits") as waits,
    ):
        for trajectory in (long, waits):
            assert isinstance(await trajectory.env_reset(demand=demand), Succeeded)
        await waiting(admin, 0)
        steps = [await each.submit(EnvStep(Command.shell("sleep 600"))) for each in (long, waits)]
        await waiting(admin, 1)
        for step in steps:
            await step.cancel()
        await waiting(admin, 0)


@pytest.mark.parametrize("facade", ["swerex", "e2b"])
async def test_a_facade_keeps_the_whole_memory_of_its_sandboxes(stack: Stack, facade: str) -> None:
    options = ("--guaranteed-memory", "--memory-mib", "300")
    async with AdminClient(stack.address) as admin:
        if facade == "swerex":
            async with facade_process(stack.address, *options) as process:
                await until_alive(runtime_at(process.facts["address"], "sure"))
                told = (await _manager_with_sandboxes(admin, 1)).sandbox_memory_mib
        else:
            async with e2b_process(stack.address, *options) as process, aiohttp.ClientSession() as session:
                await E2bCaller(session, process.facts["address"]).create()
                told = (await _manager_with_sandboxes(admin, 1)).sandbox_memory_mib
    assert told == {"demand": 300, "booked": 300, "held": 300}
