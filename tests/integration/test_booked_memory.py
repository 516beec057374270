"""What a node books for real sandboxes: what they hold, after a restart of the scheduler too."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Command, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ManagerStatus
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.settings import Isolation

from tests.support.sandboxes import require_bubblewrap
from tests.support.stack_processes import wait_serving

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


async def test_a_node_books_what_its_sandboxes_hold(tmp_path: Path) -> None:
    require_bubblewrap()
    layout = probe_layout()
    if layout is None or "memory" not in layout.controllers:
        pytest.skip("no control groups with a memory controller can be made here")
    settings = StackSettings(
        tmp_path, managers=(Role.SANDBOX,), cpus=1, memory_mib=_NODE_MIB, isolation=Isolation.BUBBLEWRAP
    )
    with anyio.fail_after(_DEADLINE_S):
        async with (
            local_stack(settings) as stack,
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
            node = (await admin.status()).nodes[0]
            assert node.free["memory"] == _NODE_MIB - told["booked"]

            killed = stack.pid(Role.SCHEDULER)
            stack.supervisor(Role.SCHEDULER).kill()
            await wait_serving(stack, Role.SCHEDULER, other_than=killed)
            async with AdminClient(stack.address) as again:
                assert (await _manager_with_sandboxes(again, 2)).sandbox_memory_mib == told
                assert isinstance(await by_need.env_step(Command.argv("true")), Succeeded)
