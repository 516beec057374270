"""Each command has a control group of its own, where there are any, of which nothing is left once it has ended."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox import sessions
from callsheet.managers.sandbox.backend import CannotExecuteError, SessionLanguage, StepSpec
from callsheet.managers.sandbox.capture import OutputPipe
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import open_backend, run, settings_for, shell, spec_for, variants

pytestmark = pytest.mark.anyio

_NAME = "leaves"


@pytest.fixture(params=variants(Isolation.NONE), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    return settings_for(request.param, tmp_path)


def _leaves() -> list[str]:
    """The groups of single commands in such sandboxes on this machine."""
    layout = probe_layout()
    if layout is None:
        return []
    return [path.parent.name for path in layout.core.glob(f"*-{_NAME}/commands/*/cgroup.procs")]


def _open_groups() -> int:
    """How many descriptors of this process lead to files of control groups."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "cgroup" in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


async def test_commands_and_sessions_that_ended_leave_no_group_and_no_descriptor(settings: SandboxSettings) -> None:
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings, _NAME), lambda _: None)
        try:
            await shell(sandbox, "true")
            agents = Path(f"/proc/{sandbox.agent_pid}/fd")
            before = _open_groups(), len(os.listdir(agents))
            for _ in range(2):
                await sandbox.pause()
                await sandbox.resume(settings.cores)
                # The first of them has the group that was made before, the next one makes its own.
                assert len(_leaves()) == int(settings.use_control_groups)
                await shell(sandbox, "true")
                await shell(sandbox, "true")
            with pytest.raises(CannotExecuteError):
                await run(sandbox, "no-such-program")
            ended = await sandbox.run_step(StepSpec("main", SessionLanguage.SHELL, "exit"), anyio.Event())
            assert ended.session is not None
            assert ended.session.ended
            assert _leaves() == []
            assert (_open_groups(), len(os.listdir(agents))) == before
        finally:
            await sandbox.destroy()


async def test_a_session_that_lacks_descriptors_to_begin_keeps_none(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(limit: int) -> OutputPipe:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), limit)

    step = StepSpec("main", SessionLanguage.SHELL, "echo begun")
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings, _NAME), lambda _: None)
        try:
            await shell(sandbox, "true")
            before = len(os.listdir("/proc/self/fd"))
            with monkeypatch.context() as short:
                short.setattr(sessions, "OutputPipe", too_many)
                with pytest.raises(OSError, match="Too many open files"):
                    await sandbox.run_step(step, anyio.Event())
            assert (_leaves(), len(os.listdir("/proc/self/fd"))) == ([], before)
            assert (await sandbox.run_step(step, anyio.Event())).stdout == b"begun\n"
        finally:
            await sandbox.destroy()


async def test_the_group_of_a_command_that_never_came_ends_with_its_sandbox(settings: SandboxSettings) -> None:
    before = _open_groups()
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec_for(settings, _NAME), lambda _: None)
        try:
            for _ in range(2):
                await sandbox.pause()
                await sandbox.resume(settings.cores)
            assert len(_leaves()) == int(settings.use_control_groups)
        finally:
            await sandbox.destroy()
    assert (_leaves(), _open_groups()) == ([], before)
