"""What every sandbox backend promises of a sandbox that goes on, on other cores than before."""

from __future__ import annotations

import errno

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.sandboxes import python, running_commands, shell, until_still


async def test_a_sandbox_goes_on_on_the_cores_that_it_is_given(
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    core = max(settings.cores)
    await sandbox.pause()
    await sandbox.resume(frozenset({core}))
    assert await python(sandbox, show) == f"[{core}]\n"
    await sandbox.pause()
    await sandbox.resume()
    assert await python(sandbox, show) == f"[{core}]\n", "without cores it stays where it was"


async def test_cores_that_do_not_exist_leave_a_sandbox_paused(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    await shell(sandbox, "while :; do echo x >> ticks; done >/dev/null 2>&1 &")
    await sandbox.pause()
    with pytest.raises(OSError, check=lambda error: error.errno in {errno.EINVAL, errno.EACCES, errno.ERANGE}):
        await sandbox.resume(frozenset({1000}))
    await until_still(_cpu_seconds)
    await sandbox.resume(settings.cores)
    assert await shell(sandbox, "echo alive") == "alive\n"


async def test_a_pause_that_comes_while_a_sandbox_is_resumed_counts(
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.execute, CommandSpec(("/bin/sh", "-c", "while :; do echo x >> ticks; done")), stop)
        await shell(sandbox, "until [ -s ticks ]; do :; done")
        await sandbox.pause()
        async with anyio.create_task_group() as changes:
            changes.start_soon(sandbox.resume, settings.cores)
            changes.start_soon(sandbox.pause)
        await until_still(_cpu_seconds)
        await sandbox.resume()
        stop.set()


def _cpu_seconds() -> float:
    processes = [process for process, line in running_commands() if any("ticks" in argument for argument in line)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)
