"""Predictions through the real service: learned, told, kept over a restart, and asked about a larger fleet."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Demand, InvalidArgumentError, NotFoundError, Succeeded, ToolCall, Unservable
from callsheet.client.admin import AdminClient
from callsheet.client.admin_predictions import ExpectedRun, WhatIf
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.command_line import invoke
from tests.support.expected import expect, present
from tests.support.ports import free_port
from tests.support.raw_service import NODE, running_noop, running_service

pytestmark = pytest.mark.anyio


async def test_what_was_learned_is_told_and_survives_a_restart(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = SchedulerSettings(tmp_path, listen=address, shutdown_grace=0.1)
    async with Client(address) as client, AdminClient(address) as admin, anyio.create_task_group() as tasks:
        manager = ManagerSettings(address, "m", NODE, handle_signals=False)
        tasks.start_soon(partial(run_manager, manager, NoopExecutor(NoopSettings())))
        async with running_service(settings):
            job = await client.open_job("job")
            waits = await job.submit(ToolCall("elsewhere", "get"), label="search", unservable=Unservable.WAIT)
            await waits.accepted()
            before = await _expected(admin, waits.action_id)
            assert before.low_s < before.mean_s < before.high_s
            for _ in range(20):
                expect(Succeeded, await job.tool_call("noop", "x", label="search", unservable=Unservable.WAIT))
            with anyio.fail_after(60):
                while (learned := await _expected(admin, waits.action_id)).mean_s >= 0.1 * before.mean_s:
                    await anyio.lowlevel.checkpoint()
            assert learned.high_s < before.high_s
        async with running_service(settings):
            assert (await _expected(admin, waits.action_id)).mean_s < 0.1 * before.mean_s
        tasks.cancel_scope.cancel()


async def _expected(admin: AdminClient, action_id: str) -> ExpectedRun:
    return present((await admin.explain("job", action_id)).expected)


async def test_the_command_line_shows_what_is_expected(tmp_path: Path) -> None:
    async with (
        running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service,
        running_noop(service.address, NoopSettings(execution_s=1000.0)),
        Client(service.address) as client,
        AdminClient(service.address) as admin,
    ):

        async def shown(command: str, *arguments: str) -> str:
            words = [*command.split(), "--scheduler", service.address, *arguments]
            done = await anyio.to_thread.run_sync(invoke, *words)
            assert done.exit_code == 0, done.stderr
            return done.stdout

        async with await client.open_job("job") as job:
            for number in range(6):
                await (await job.submit(ToolCall("noop", "x"), action_id=f"a{number}", demand=Demand(cpu=1))).accepted()
            with anyio.fail_after(60):
                while (await admin.status()).nodes[0].free["cpu"]:
                    await anyio.lowlevel.checkpoint()
            explained = await shown("explain a5")
            assert "0 of 2 free" in explained
            assert "1 cpu held by action a0 of job job on node for" in explained
            assert "expected at its fewest units" in explained
            answer = await shown("what-if --pool node --nodes 1")
            assert "4 wait, 0 -> 2 start at once" in answer
            assert "tool_call" in answer
            found = json.loads(await shown("what-if --pool node --nodes 2 --json"))
            assert found["after"]["mean_act_s"] < found["before"]["mean_act_s"]
            assert found["after"]["start_now"] == 4
        # The job is closed, and its actions are explained all the same.
        assert "cancelled (its job was closed)" in await shown("explain a5")
        assert json.loads(await shown("explain a5 --json"))["job_closed"]


async def test_a_larger_fleet_is_asked_about(tmp_path: Path) -> None:
    async with (
        running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service,
        AdminClient(service.address) as admin,
        anyio.create_task_group() as tasks,
    ):
        with pytest.raises(NotFoundError, match="no manager is registered"):
            await admin.what_if("pool-0", 1)
        manager = ManagerSettings(service.address, "m", NODE, handle_signals=False)
        tasks.start_soon(partial(run_manager, manager, NoopExecutor(NoopSettings())))
        found = await _answer_once_it_takes_actions(admin, NODE.node_id, 2)
        assert (found.pool, found.nodes) == ("pool-0", 1)
        assert found.before == found.after
        assert "nothing waits" in found.summary
        with pytest.raises(InvalidArgumentError, match="between 1 and 10000"):
            await admin.what_if("pool-0", 0)
        with pytest.raises(InvalidArgumentError, match="between 1 and 10000"):
            await admin.what_if("pool-0", 10**14)
        with pytest.raises(NotFoundError, match="pool-0"):
            await admin.what_if("elsewhere", 1)
        tasks.cancel_scope.cancel()


async def _answer_once_it_takes_actions(admin: AdminClient, node_id: str, nodes: int) -> WhatIf:
    """A manager counts with its first heartbeat, which comes after its registration."""
    with anyio.fail_after(60):
        while True:
            with suppress(NotFoundError):
                return await admin.what_if(node_id, nodes)
            await anyio.lowlevel.checkpoint()
