"""Each command has a control group of its own, where there are any: the next one gets it once it is empty."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client import sessions
from callsheet.managers.sandbox.agent_client.capture import OutputPipe
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec, SessionLanguage, StepSpec
from callsheet.managers.sandbox.cgroups import files, find_layout
from callsheet.managers.sandbox.errors import CannotExecuteError
from callsheet.managers.sandbox.process_tree import has_children
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import open_backend, open_sandbox, run, settings_for, shell, spec_for, variants
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=variants(Isolation.NONE, Isolation.DOCKER), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    return settings_for(request.param, tmp_path)


def _commands(sandbox: AgentSandbox) -> Path | None:
    """The group of all commands of a sandbox; None where it has none."""
    groups = Path(f"/proc/{sandbox.agent_pid}/cgroup").read_text()
    layout = find_layout(Path("/proc/self/mountinfo").read_text(), groups)
    # A container's first process stays where the engine puts it, any other has a group of its own beside the commands'.
    near = [layout.core, layout.core.parent] if layout is not None else []
    return next((group / "commands" for group in near if (group / "commands").is_dir()), None)


def _leaves(commands: Path | None) -> list[str]:
    """The groups of single commands."""
    return [path.parent.name for path in commands.glob("*/cgroup.procs")] if commands is not None else []


def _open_groups() -> int:
    """How many descriptors of this process lead to files of control groups."""
    return _open("cgroup")


def _open_pipes() -> int:
    """How many descriptors of this process are pipes; gRPC's threads open sockets and events when they like."""
    return _open("pipe:")


def _open(kind: str) -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += kind in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


async def test_commands_and_sessions_that_ended_leave_no_group_and_no_descriptor(settings: SandboxSettings) -> None:
    at_first = _open_groups()
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings), lambda _: None)
        commands = _commands(sandbox)
        try:
            await sandbox.pause()
            await sandbox.resume(settings.cores)
            await shell(sandbox, "true")
            agents = Path(f"/proc/{sandbox.agent_pid}/fd")
            before = _open_groups(), len(os.listdir(agents))
            for _ in range(2):
                await sandbox.pause()
                await sandbox.resume(settings.cores)
                assert len(_leaves(commands)) == int(settings.use_control_groups)
                await shell(sandbox, "true")
                await shell(sandbox, "true")
            with pytest.raises(CannotExecuteError):
                await run(sandbox, "no-such-program")
            ended = await sandbox.run_step(StepSpec("main", SessionLanguage.SHELL, "exit"), anyio.Event())
            assert ended.session is not None
            assert ended.session.ended
            assert _leaves(commands) == []
            await shell(sandbox, "true")
            assert len(_leaves(commands)) == int(settings.use_control_groups)
            assert (_open_groups(), len(os.listdir(agents))) == before
        finally:
            await sandbox.destroy()
    assert _open_groups() == at_first


async def test_a_command_after_another_writes_nothing_into_its_groups(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = files.write_setting

    def note(path: Path, value: str) -> None:
        written.append(path.name)
        write(path, value)

    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings), lambda _: None)
        try:
            for script in ("true", "exit 0", "sleep 60 & sleep 0", "true"):
                await sandbox.resume(settings.cores)
                await shell(sandbox, script)
                await sandbox.pause()
                if script == "true" and not written:
                    monkeypatch.setattr(files, "write_setting", note)
                elif script == "exit 0":
                    assert written == [], "nothing was left inside that could be frozen"
            if settings.use_control_groups:
                assert "cgroup.freeze" in written, "what the third one left must stand still"
        finally:
            await sandbox.destroy()


async def test_what_begins_in_a_sandbox_that_stands_still_waits(settings: SandboxSettings) -> None:
    if not settings.use_control_groups:
        return  # It is stopped once it has begun.
    late = CommandSpec(("/bin/sh", "-c", "echo > late"))
    async with open_sandbox(settings) as sandbox:
        await shell(sandbox, "true")
        await sandbox.pause()
        with anyio.move_on_after(0.5) as waited:
            await sandbox.execute(late, anyio.Event())
        assert waited.cancelled_caught
        await sandbox.resume(settings.cores)
        assert await shell(sandbox, "ls") == ""
        await sandbox.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.execute, late, anyio.Event())
            await until(lambda: has_children(sandbox.agent_pid))
            await sandbox.resume(settings.cores)
        assert await shell(sandbox, "ls") == "late\n"


async def test_a_session_that_lacks_descriptors_to_begin_keeps_none(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(limit: int) -> OutputPipe:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), limit)

    step = StepSpec("main", SessionLanguage.SHELL, "echo begun")
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings), lambda _: None)
        commands = _commands(sandbox)
        try:
            await shell(sandbox, "true")
            before = _open_pipes() + _open_groups()
            with monkeypatch.context() as short:
                short.setattr(sessions, "OutputPipe", too_many)
                with pytest.raises(OSError, match="Too many open files"):
                    await sandbox.run_step(step, anyio.Event())
            assert _leaves(commands) == []
            await shell(sandbox, "true")
            assert _open_pipes() + _open_groups() == before
            assert (await sandbox.run_step(step, anyio.Event())).stdout == b"begun\n"
        finally:
            await sandbox.destroy()


async def test_the_group_of_a_command_that_never_came_ends_with_its_sandbox(settings: SandboxSettings) -> None:
    before = _open_groups()
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings), lambda _: None)
        commands = _commands(sandbox)
        try:
            for _ in range(2):
                await sandbox.pause()
                await sandbox.resume(settings.cores)
            assert len(_leaves(commands)) == int(settings.use_control_groups)
        finally:
            await sandbox.destroy()
    assert (_leaves(commands), _open_groups()) == ([], before)
