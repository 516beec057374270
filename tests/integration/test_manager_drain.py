"""A manager process leaves in good order on a signal; a manager leaves when its scheduler or its owner says so."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from callsheet.managers.runtime import ExecutorFailedError
from callsheet.v1 import manager_service_pb2
from typing_extensions import override

from tests.support.dispatches import make_dispatch
from tests.support.running_manager import RunningManager, running_manager
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_scheduler import ScriptedScheduler, ScriptedSession

pytestmark = pytest.mark.anyio

WAIT_S = 60.0


@asynccontextmanager
async def manager_process(drain_timeout_s: float) -> AsyncIterator[tuple[Process, ScriptedSession]]:
    scheduler = ScriptedScheduler()
    await scheduler.start()
    command = [sys.executable, "-m", "tests.support.noop_manager_process", scheduler.address, str(drain_timeout_s)]
    process = await anyio.open_process(
        command, cwd=Path(__file__).parents[2], stdin=None, stdout=sys.stderr, stderr=None
    )
    try:
        yield process, await scheduler.next_session()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()
            await scheduler.close()


async def exit_code(process: Process) -> int:
    with anyio.fail_after(WAIT_S):
        return await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_attempts_end(number: signal.Signals) -> None:
    async with manager_process(drain_timeout_s=30.0) as (process, session):
        await session.dispatch(make_dispatch("a", 1, expected_s=0.5))
        await session.wait_count("started", 1)
        process.send_signal(number)
        await session.wait_count("draining", 1)
        await session.dispatch(make_dispatch("b", 2))
        # In no order: by then the first may have ended, and its end is kept until it is acknowledged.
        ended, refused = sorted(await session.wait_ends(2), key=lambda end: end.key.action_id)
        assert (refused.key.action_id, refused.failed.reason, refused.started) == ("b", "manager_draining", False)
        assert ended.HasField("succeeded")
        await session.acknowledge(ended)
        with anyio.fail_after(WAIT_S):
            await session.over.wait()
        assert await exit_code(process) == 0


async def test_attempts_that_do_not_end_in_time_are_stopped() -> None:
    async with manager_process(drain_timeout_s=0.1) as (process, session):
        await session.dispatch(make_dispatch("a", 1, expected_s=600))
        await session.wait_count("started", 1)
        process.send_signal(signal.SIGTERM)
        (ended,) = await session.wait_ends()
        assert (ended.failed.reason, ended.started) == ("manager_stopped", True)
        await session.acknowledge(ended)
        assert await exit_code(process) == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    async with manager_process(drain_timeout_s=600.0) as (process, session):
        await session.dispatch(make_dispatch("a", 1, expected_s=600))
        await session.wait_count("started", 1)
        process.send_signal(signal.SIGTERM)
        await session.wait_count("draining", 1)
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
        assert not session.of("ended")


async def test_a_scheduler_can_have_it_leave(
    manager: RunningManager, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.send(manager_service_pb2.SchedulerItem(drain=manager_service_pb2.Drain()))
    with anyio.fail_after(WAIT_S):
        await manager.left.wait()
    assert session.of("draining")
    assert scripted.closed


async def test_it_says_again_that_it_is_leaving_after_a_reconnect(
    manager: RunningManager, scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, script="go"))
    await scripted.wait_call("run a")
    manager.stop.set()
    await session.wait_count("draining", 1)
    session.end()
    again = await manager.scheduler.next_session()
    await again.wait_count("draining", 1)
    scripted.go.set()
    await again.acknowledge(*(await again.wait_ends()))
    with anyio.fail_after(WAIT_S):
        await manager.left.wait()


async def test_it_leaves_without_a_scheduler_too() -> None:
    executor = ScriptedExecutor()
    async with running_manager(executor, acknowledge_timeout_s=0.05) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1))
        await session.wait_ends()
        await manager.scheduler.stop()
        manager.stop.set()
        with anyio.fail_after(WAIT_S):
            await manager.left.wait()
    assert executor.closed


class MortalScriptedExecutor(ScriptedExecutor):
    """Dies when `death` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.death = anyio.Event()

    @override
    async def wait_failed(self) -> str:
        """See Executor."""
        await self.death.wait()
        return "the engine is gone"


async def test_a_manager_whose_executor_died_leaves_and_says_so() -> None:
    executor = MortalScriptedExecutor()
    with pytest.RaisesGroup(ExecutorFailedError, flatten_subgroups=True):
        async with running_manager(executor) as running:
            session = await running.scheduler.next_session()
            executor.death.set()
            await session.wait_count("draining", 1)
            with anyio.fail_after(WAIT_S):
                await running.left.wait()
    assert executor.closed
