"""Keeping one process running, with real ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.cli.output import first_error
from callsheet.deploy.roles import Role
from callsheet.managers.supervision.processes import ChildProcess, ProcessFailedError
from callsheet.managers.supervision.standing import RestartRule
from callsheet.managers.supervision.supervisor import Supervisor

from tests.support.child_process import child_spec
from tests.support.expected import expect, present
from tests.support.stack_processes import start_now

pytestmark = pytest.mark.anyio
_DEADLINE_S = 100.0
_QUICK = RestartRule(initial_s=0.01, longest_s=0.02, first_failures=0, most_failures=2)


def another_than(old: ChildProcess | None) -> Callable[[ChildProcess | None], bool]:
    return lambda process: process is not None and process is not old


async def test_a_process_that_dies_is_started_again() -> None:
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("quiet"), _QUICK, grace_s=5.0)
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            first = present(supervisor.process)
            os.kill(first.pid, signal.SIGKILL)
            await supervisor.wait_for(another_than(first))
            supervisor.stop()
    assert supervisor.process is None


async def test_a_manager_that_left_in_good_order_stays_away_until_it_is_asked_for() -> None:
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("leaving"), _QUICK, grace_s=5.0, may_leave=True)
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            first = present(supervisor.process)
            os.kill(first.pid, signal.SIGTERM)
            await supervisor.wait_for(lambda process: process is None)
            with anyio.move_on_after(20 * _QUICK.longest_s):
                await supervisor.wait_for(lambda process: process is not None)
            assert supervisor.process is None
            await start_now(supervisor)
            await supervisor.wait_for(another_than(first))
            supervisor.stop()


async def test_deliberate_kills_do_not_count_as_failures() -> None:
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("quiet"), _QUICK, grace_s=5.0)
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            for _ in range(4):
                killed = supervisor.process
                supervisor.kill()
                await supervisor.wait_for(another_than(killed))
            supervisor.stop()


async def test_too_many_failures_in_a_row_are_an_error(tmp_path: Path) -> None:
    marker = str(tmp_path / "started")
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("once", marker), _QUICK, grace_s=5.0)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            assert supervisor.process is not None
            os.kill(supervisor.process.pid, signal.SIGKILL)

    with anyio.fail_after(_DEADLINE_S), pytest.raises(ExceptionGroup) as caught:
        await run()
    assert "noop failed 3 times in a row" in str(expect(ProcessFailedError, first_error(caught.value)))


async def test_a_first_start_that_fails_is_an_error_at_once() -> None:
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("fail"), _QUICK, grace_s=5.0)
    with anyio.fail_after(_DEADLINE_S), pytest.raises(ProcessFailedError, match="exit code 3"):
        await supervisor.run()


async def test_a_start_that_is_cancelled_ends_its_process(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("silent", str(marker)), _QUICK, grace_s=5.0)
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as starts:
            starts.start_soon(tasks.start, supervisor.run)
            await _until_written(marker)
            starts.cancel_scope.cancel()
    assert not psutil.pid_exists(int(marker.read_text()))


async def _until_written(marker: Path) -> None:
    """A process that says nothing gives no other sign."""
    path = anyio.Path(marker)
    while not await path.exists() or not await path.read_text():  # noqa: ASYNC110 - see above
        await anyio.sleep(0.01)


async def test_what_does_not_run_cannot_be_killed() -> None:
    supervisor = Supervisor(Role.NOOP, lambda: child_spec("quiet"), _QUICK, grace_s=5.0)
    with pytest.raises(ProcessFailedError, match="noop does not run now"):
        supervisor.kill()
