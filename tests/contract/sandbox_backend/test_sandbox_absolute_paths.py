"""What every sandbox backend promises of absolute paths: they are those that commands see, within the sandbox."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec, FileSpec, SessionLanguage, StepSpec
from callsheet.managers.sandbox.errors import CannotExecuteError, FileRefusedError
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import shell

pytestmark = pytest.mark.anyio


async def test_files_are_written_read_and_removed(sandbox: AgentSandbox) -> None:
    path, stop = sandbox.temporary_path("a/b/file"), anyio.Event()
    await sandbox.write_file(FileSpec(path, b"content", mode=0o600), stop)
    assert await shell(sandbox, f"cat {path}; stat -c %a {path}") == "content600\n"
    assert await sandbox.read_file(path, 100, stop) == b"content"
    await sandbox.remove_file(path, stop)
    await sandbox.remove_file(path, stop)
    assert await shell(sandbox, f"ls {sandbox.temporary_path('a/b')}") == ""


async def test_the_working_directory_has_an_absolute_path_too(sandbox: AgentSandbox) -> None:
    here = (await shell(sandbox, "pwd")).strip()
    await sandbox.write_file(FileSpec(f"{here}/sub/file", b"content"), anyio.Event())
    assert await sandbox.read_file("sub/file", 100, anyio.Event()) == b"content"


async def test_a_link_is_removed_and_not_followed_and_a_directory_with_all_in_it(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "echo kept > target; ln -s target link; mkdir -p dir/deep; touch dir/deep/file; chmod 0 dir")
    for path in ("link", "dir", "missing/file"):
        await sandbox.remove_file(path, anyio.Event())
    assert await shell(sandbox, "cat target; ls") == "kept\ntarget\n"


async def test_commands_and_sessions_begin_in_an_absolute_directory(sandbox: AgentSandbox) -> None:
    place, stop = sandbox.temporary_path("place"), anyio.Event()
    await sandbox.write_file(FileSpec(place, directory=True), stop)
    outcome = await sandbox.execute(CommandSpec(("/bin/pwd",), working_directory=place), stop)
    assert outcome.stdout.decode() == f"{place}\n"
    stepped = await sandbox.run_step(StepSpec("main", SessionLanguage.SHELL, "pwd -P", directory=place), stop)
    assert stepped.stdout.decode() == f"{place}\n"


async def test_links_on_an_absolute_way_are_not_followed(sandbox: AgentSandbox) -> None:
    temporary, stop = sandbox.temporary_path(""), anyio.Event()
    await shell(
        sandbox, f"mkdir {temporary}/real; ln -s {temporary}/real {temporary}/link; echo x > {temporary}/real/file"
    )
    with pytest.raises(FileRefusedError) as written:
        await sandbox.write_file(FileSpec(f"{temporary}link/new", b"x"), stop)
    assert written.value.reason == "bad_path"
    with pytest.raises(FileRefusedError) as read:
        await sandbox.read_file(f"{temporary}link/file", 100, stop)
    assert read.value.reason == "not_a_file"
    with pytest.raises(CannotExecuteError) as entered:
        await sandbox.execute(CommandSpec(("true",), working_directory=f"{temporary}link"), stop)
    assert entered.value.reason == "bad_working_directory"


async def test_nothing_is_written_over_the_system(
    sandbox: AgentSandbox, settings: SandboxSettings, tmp_path: Path
) -> None:
    confined = settings.isolation is Isolation.NONE
    for file in (FileSpec("/usr/new", b"x"), FileSpec("/usr/new", directory=True), FileSpec("/usr/new", unpack=True)):
        with pytest.raises(FileRefusedError) as written:
            await sandbox.write_file(file, anyio.Event())
        assert written.value.reason == ("outside_sandbox" if confined else "not_writable")
    if confined:
        (tmp_path / "secret").write_text("of the host")
        for operation in (
            sandbox.read_file(f"{tmp_path}/secret", 100, anyio.Event()),
            sandbox.remove_file(f"{tmp_path}/secret", anyio.Event()),
            sandbox.execute(CommandSpec(("true",), working_directory=str(tmp_path)), anyio.Event()),
        ):
            with pytest.raises(FileRefusedError) as refused:
                await operation
            assert refused.value.reason == "outside_sandbox"
        assert (tmp_path / "secret").exists()
