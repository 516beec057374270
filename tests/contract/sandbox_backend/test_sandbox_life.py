"""What every sandbox backend promises of a sandbox's begin and end."""

from __future__ import annotations

import os
import signal

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.errors import SandboxCreateError, SandboxLostError
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import run, running_commands, shell, spec_for, until_sleepers_are, variants


async def test_kill_ends_background_processes_and_keeps_files(sandbox: AgentSandbox) -> None:
    script = "echo state > file; (while :; do date +%N > beat; sleep 0.01; done) >/dev/null 2>&1 &"
    await shell(sandbox, script)
    await sandbox.kill()
    assert await shell(sandbox, 'cat file; a=$(cat beat); sleep 0.1; test "$a" = "$(cat beat)"') == "state\n"


async def test_sandboxes_do_not_share_files(backend: AgentBackend, settings: SandboxSettings) -> None:
    first = await backend.create(spec_for(settings, "first"), lambda _: None)
    second = await backend.create(spec_for(settings, "second"), lambda _: None)
    try:
        await shell(first, "echo secret > file; echo secret > $TMPDIR/file")
        assert await shell(second, "ls; ls $TMPDIR") == ""
    finally:
        await first.destroy()
        await second.destroy()


async def test_a_destroyed_sandbox_is_gone(sandbox: AgentSandbox, settings: SandboxSettings) -> None:
    await shell(sandbox, "echo x > file; (setsid sleep 1000 >/dev/null 2>&1 &)")
    await sandbox.destroy()
    await sandbox.destroy()
    with pytest.raises(SandboxLostError):
        await run(sandbox, "true")
    await until_sleepers_are([])
    assert [path for path in settings.data_directory.rglob("*") if path.is_dir() and path.name == "one"] == []


async def test_destroying_ends_a_running_command(sandbox: AgentSandbox) -> None:
    with pytest.RaisesGroup(SandboxLostError):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, sandbox, "sleep", "1000")
            await until_sleepers_are([["sleep", "1000"]])
            await sandbox.destroy()


async def test_the_loss_of_the_first_process_is_told(backend: AgentBackend, settings: SandboxSettings) -> None:
    told: list[str] = []
    lost = anyio.Event()

    def on_lost(reason: str) -> None:
        told.append(reason)
        lost.set()

    sandbox = await backend.create(spec_for(settings), on_lost)
    try:
        os.kill(sandbox.agent_pid, signal.SIGKILL)
        with anyio.fail_after(60):
            await lost.wait()
        assert sandbox.loss is not None
        with pytest.raises(SandboxLostError):
            await run(sandbox, "true")
    finally:
        await sandbox.destroy()
    assert len(told) == 1


@pytest.mark.parametrize("settings", variants(Isolation.BUBBLEWRAP, Isolation.NONE), ids=str, indirect=True)
async def test_after_the_loss_of_the_launcher_new_sandboxes_can_be_made(
    backend: AgentBackend, settings: SandboxSettings
) -> None:
    await (await backend.create(spec_for(settings, "first"), lambda _: None)).destroy()
    (launcher,) = (process for process, line in running_commands() if any("sandbox/launcher" in word for word in line))
    launcher.kill()
    # Its end is told by its socket; until then a new sandbox is refused, which the scheduler's retry would repeat.
    with anyio.fail_after(60):
        second = None
        while second is None:
            try:
                second = await backend.create(spec_for(settings, "second"), lambda _: None)
            except SandboxCreateError:
                await anyio.sleep(0.01)
    try:
        assert await shell(second, "echo alive") == "alive\n"
    finally:
        await second.destroy()


async def test_capabilities_are_words(backend: AgentBackend, settings: SandboxSettings) -> None:
    capabilities = backend.capabilities()
    assert capabilities["isolation"] == settings.isolation.value
    assert {"cpu", "memory", "processes", "network", "filesystem", "stop", "idle"} <= set(capabilities)
    assert all(capabilities.values())
