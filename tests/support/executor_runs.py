"""A sandbox executor without a scheduler: actions that it runs, and the outcome of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, reset, step


@asynccontextmanager
async def running_executor(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    """Runs an executor for the length of the block."""
    executor = build_sandbox_executor(settings)
    try:
        yield executor
    finally:
        await executor.close()


async def completed(executor: Executor, action: action_pb2.ActionSpec, **grant: Any) -> outcome_pb2.Succeeded:
    """Runs an action that must succeed; `grant` is that of `attempt_of`."""
    return expect(Completed, await executor.run(attempt_of(action, **grant))).succeeded


async def make(executor: SandboxExecutor, action: action_pb2.ActionSpec | None = None, memory: int = 256) -> str:
    """Runs an env_reset that must succeed; returns the sandbox's id."""
    return (await completed(executor, action or reset(), resources={"memory": memory})).env_reset.sandbox_id


async def printed(executor: SandboxExecutor, sandbox_id: str, script: str, trajectory: str = "trajectory") -> str:
    """Runs a shell script that must exit with 0; returns its standard output."""
    done = (await completed(executor, step(script, trajectory=trajectory), sandbox_id=sandbox_id)).env_step
    assert done.exit_code == 0, done.stderr.inline
    return done.stdout.inline.decode(errors="replace")


def failure(result: AttemptResult) -> tuple[str, str]:
    """Returns kind and reason of a result that must be a failure."""
    failed = expect(Broken, result).failed
    return outcome_pb2.FailureKind.Name(failed.kind).removeprefix("FAILURE_KIND_"), failed.reason


@asynccontextmanager
async def under_way(executor: Executor, attempt: Attempt) -> AsyncIterator[list[AttemptResult]]:
    """Runs an attempt beside the block; after the block its result is in the list."""
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await executor.run(attempt))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield results
