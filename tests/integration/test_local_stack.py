"""A whole stack of real processes: what it serves, and what happens when parts of it die."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.cli.output import first_error
from callsheet.cli.up_progress import UpProgress, still_waiting_line
from callsheet.client import Client, Demand, Succeeded, Unservable
from callsheet.client.admin import AdminClient
from callsheet.deploy import stack as stacks
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import STACK_RESTARTS, StackSettings
from callsheet.managers.supervision.processes import ProcessFailedError
from callsheet.managers.supervision.standing import RestartRule

from tests.support.expected import expect
from tests.support.stack_processes import kill_and_wait, start, wait_serving

pytestmark = pytest.mark.anyio
_DEADLINE_S = 100.0


def settings(data_dir: Path, restart: RestartRule = STACK_RESTARTS) -> StackSettings:
    return StackSettings(data_dir, managers=(Role.NOOP,), restart=restart)


async def tool_call(address: str, action_id: str) -> None:
    async with Client(address) as client, await client.open_job(f"job-{action_id}") as job:
        # After a restart of the scheduler its managers take a moment to come back.
        expect(
            Succeeded,
            await job.tool_call("noop", "nothing", action_id=action_id, demand=Demand(), unservable=Unservable.WAIT),
        )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_stack_serves_tells_which_starts_take_long_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_LONG_START_S", 1e-3)
    shown: list[str] = []
    watcher = UpProgress(shown.append, lambda address, *_: shown.append(address))
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path), watcher=watcher) as stack:
            pids = [stack.pid(role) for role in (Role.SCHEDULER, Role.NOOP)]
            async with AdminClient(stack.address) as admin:
                status = await admin.status()
            assert [manager.connected for manager in status.managers] == [True]
            await tool_call(stack.address, "a-1")
    assert not any(map(is_alive, pids))
    assert (tmp_path / "logs" / "scheduler.log").read_text()
    assert shown[0] == "scheduler does not serve yet after 0 s"
    assert any(line.startswith("noop does not serve yet after ") for line in shown)
    assert shown[-1].startswith("noop manager is ready")


def test_a_long_start_is_told_with_what_was_logged_last(tmp_path: Path) -> None:
    log = tmp_path / "noop.log"
    log.write_text('{"event": "first"}\n{"event": "cannot connect", "reason": "refused", "level": "warning"}\n')
    told = still_waiting_line("noop", 10.0, log)
    assert told.startswith(f"noop does not serve yet after 10 s; its log is {log} and ends with: ")
    assert told.endswith("noop warning cannot connect reason=refused")


async def test_killed_processes_come_back_at_the_same_address(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path)) as stack:
            address = stack.address
            for role in (Role.NOOP, Role.SCHEDULER):
                killed = stack.pid(role)
                stack.supervisor(role).kill()
                assert await wait_serving(stack, role, other_than=killed) != killed
                await tool_call(address, f"after-{role.value}")
            assert stack.address == address


async def test_without_restarts_a_killed_process_waits_to_be_started(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path, replace(STACK_RESTARTS, enabled=False))) as stack:
            await kill_and_wait(stack, Role.SCHEDULER)
            assert stack.supervisor(Role.SCHEDULER).process is None
            with pytest.raises(LookupError, match="scheduler does not run now"):
                stack.pid(Role.SCHEDULER)
            await start(stack, Role.SCHEDULER)
            await tool_call(stack.address, "a-1")


async def test_a_stack_that_cannot_start_says_which_part_and_why(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path / "first")) as stack:
            second = StackSettings(tmp_path / "second", listen=stack.address, managers=(Role.NOOP,))
            with pytest.raises((ProcessFailedError, ExceptionGroup)) as caught:
                async with local_stack(second):
                    pytest.fail("two schedulers cannot have one address")
    error = expect(ProcessFailedError, first_error(caught.value))
    assert "scheduler ended before it was ready (exit code 1)" in str(error)
    assert "cannot bind" in str(error)


def test_the_dashboards_address_is_the_last_line_whatever_serves_first() -> None:
    shown: list[str] = []
    watcher = UpProgress(shown.append, lambda *_: None)
    watcher.manager_registered("sandbox", 1.0, ["inference"])
    watcher.manager_registered("inference", 2.0, [])
    watcher.dashboard_serves("http://127.0.0.1:7079")
    assert shown[-1] == "the dashboard is at http://127.0.0.1:7079"
    watcher.manager_registered("inference", 90.0, [])
    assert shown[-1] == "the dashboard is at http://127.0.0.1:7079"
    assert len(shown) == 5
