"""A fleet on this machine keeps its drains through a restart of its scheduler."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
from callsheet.client import Client, ConnectionLostError
from callsheet.client.admin import AdminClient

from tests.support.fleets import Up, processes_of, running, wait_for

pytestmark = pytest.mark.anyio

UNITS = ("--nodes", "2", "--cpus", "1", "--memory-mib", "500")


async def leaving(up: Up) -> dict[str, float | None]:
    """When managers leave that are to."""
    return {each.manager_id: each.leaves_by for each in (await up.status()).managers if each.leaving}


async def test_drains_outlive_the_scheduler(tmp_path: Path) -> None:
    async with running(("--on", "local"), tmp_path, *UNITS) as up, Client(up.address) as client:
        await up.wait_for_nodes(2)
        async with await client.open_job("run") as job, job.trajectory("t") as trajectory:
            (await trajectory.env_reset()).unwrap()
            (holder,) = [each.manager_id for each in await up.connected() if each.sandboxes]
            async with AdminClient(up.address) as admin:
                await admin.drain(holder, deadline_s=600.0)
            (before,) = (await leaving(up)).values()
            assert before is not None

            async def is_seen() -> bool:
                return holder in {each["name"] for each in up.fleet() if each["manager"] == "leaving"}

            await wait_for(is_seen)
            (scheduler,) = [each for each in processes_of(tmp_path) if "scheduler" in each.info["cmdline"]]
            scheduler.send_signal(signal.SIGKILL)
            scheduler.wait(60)

            async def leaves_again() -> bool:
                with contextlib.suppress(ConnectionLostError):
                    return holder in await leaving(up)
                return False

            await wait_for(leaves_again)
            assert (await leaving(up)) == {holder: pytest.approx(before, abs=5.0)}, "only that one, and no later"
            (await trajectory.env_step("true")).unwrap()

        async def is_replaced() -> bool:
            names = {each["name"] for each in up.fleet()}
            return holder not in names and len(names) == 2

        await wait_for(is_replaced)
