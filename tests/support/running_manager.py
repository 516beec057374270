"""A manager runtime in this process, beside a scripted scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
from callsheet.managers.executor import Executor
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import manager_service_pb2

from tests.support.scripted_scheduler import ScriptedScheduler

NODE = manager_service_pb2.NodeSpec(
    node_id="node", capacity={"memory": 1024}, numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
)


@dataclass
class RunningManager:
    """What a test needs of it; `left` is set once `run_manager` has returned."""

    scheduler: ScriptedScheduler
    stop: anyio.Event
    left: anyio.Event


@asynccontextmanager
async def running_manager(executor: Executor, **changes: Any) -> AsyncIterator[RunningManager]:
    """Runs a manager for the length of the block; `changes` are settings."""
    scheduler = ScriptedScheduler()
    await scheduler.start()
    settings = ManagerSettings(
        scheduler.address, "m", NODE, handle_signals=False, reconnect_initial_s=0.01, reconnect_max_s=0.05
    )
    running = RunningManager(scheduler, anyio.Event(), anyio.Event())
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run, partial(run_manager, replace(settings, **changes), executor), running)
            yield running
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await scheduler.close()


async def _run(run: partial[Any], running: RunningManager) -> None:
    await run(stop=running.stop)
    running.left.set()
