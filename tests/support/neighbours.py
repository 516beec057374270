"""A sandbox that works on while another one is attacked from, or attacks."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed
from tests.support.measurements import Measured
from tests.support.sandbox_attempts import reset, step

PROCESSES = 32
MEMORY_MIB = 128
_BEFORE = 5
_DISK_MIB = 16


async def make(executor: SandboxExecutor, trajectory: str) -> str:
    action = reset(trajectory=trajectory)
    action.env_reset.disk_mib, action.env_reset.max_processes = _DISK_MIB, PROCESSES
    return (await completed(executor, action, resources={"memory": MEMORY_MIB})).env_reset.sandbox_id


def python_step(code: str) -> action_pb2.ActionSpec:
    command = action_pb2.Command(python=code, max_output_bytes=10_000)
    return action_pb2.ActionSpec(trajectory_id="attacker", env_step=action_pb2.EnvStepInput(command=command))


async def work(executor: SandboxExecutor, sandbox_id: str) -> float:
    """Runs `true` for the neighbour, which must succeed; returns how long it took, in seconds."""
    started = time.perf_counter()
    result = await completed(executor, step("exec true", trajectory="neighbour"), sandbox_id=sandbox_id)
    assert result.env_step.exit_code == 0
    return time.perf_counter() - started


@asynccontextmanager
async def neighbour(executor: SandboxExecutor, measured: Measured) -> AsyncIterator[None]:
    """A sandbox that goes on running commands, each of which must succeed."""
    sandbox_id = await make(executor, "neighbour")
    before = [await work(executor, sandbox_id) for _ in range(_BEFORE)]
    during: list[float] = []

    async def go_on() -> None:
        while True:
            during.append(await work(executor, sandbox_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        yield
        tasks.cancel_scope.cancel()
    during.append(await work(executor, sandbox_id))
    measured(f"neighbour's `true` before {_summary(before)}, during {_summary(during)}")


def _summary(seconds: list[float]) -> str:
    return f"p50 {statistics.median(seconds) * 1e3:.1f} ms, most {max(seconds) * 1e3:.1f} ms"


async def until_the_next_reset_works(executor: SandboxExecutor) -> None:
    """Whatever the attacker's sandbox has become, a fresh one takes its place."""
    sandbox_id = await make(executor, "attacker")
    result = await completed(executor, python_step("print('fresh')"), sandbox_id=sandbox_id)
    assert result.env_step.stdout.inline == b"fresh\n"
