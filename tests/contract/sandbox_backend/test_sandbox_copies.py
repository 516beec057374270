"""What every backend promises of files that must win, and of copies of a sandbox's files."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import FileSpec
from callsheet.managers.sandbox.errors import CopyRefusedError, FileRefusedError, StoppedError
from callsheet.managers.sandbox.files.root_filesystem import RootFilesystem
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.provisioning.archives import unpack_copy
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.sandboxes import ANSWER_SECONDS, shell, spec_for

_LIMIT = 64 << 20

IN_THE_WAY = {
    "a link to a file": "mkdir tests; echo other > other; ln -s ../other tests/it",
    "a link to a directory": "mkdir other; touch other/it; ln -s other tests",
    "a link out": "ln -s {temporary} tests",
    "a chain of links": "mkdir other; ln -s other middle; ln -s middle tests",
    "a link to itself": "ln -s tests tests",
    "a file": "echo file > tests",
    "a pipe": "mkfifo tests",
    "a directory": "mkdir -p tests/it/deep/er; touch tests/it/deep/file",
    "a directory that may not be entered": "mkdir -p tests/it/in; touch tests/it/in/file; chmod 0 tests/it/in tests/it",
    "a directory that may not be written": "mkdir tests; echo old > tests/it; chmod 444 tests/it; chmod 555 tests .",
    "a hard link": "mkdir tests; echo other > other; ln other tests/it",
}


def _archive(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(b"pristine")
        archive.addfile(member, io.BytesIO(b"pristine"))
    return buffer.getvalue()


@pytest.mark.parametrize("unpack", [False, True], ids=["file", "archive"])
@pytest.mark.parametrize("obstacle", IN_THE_WAY)
async def test_a_file_that_replaces_wins(sandbox: AgentSandbox, obstacle: str, unpack: bool) -> None:
    temporary = sandbox.temporary_path("").rstrip("/")
    await shell(sandbox, f"touch {temporary}/outside; {IN_THE_WAY[obstacle].format(temporary=temporary)}")
    file = FileSpec("tests", _archive("it"), unpack=True) if unpack else FileSpec("tests/it", b"pristine")
    await sandbox.write_file(replace(file, replaces=True), anyio.Event())
    assert await shell(sandbox, "cat tests/it; test ! -L tests && test ! -L tests/it") == "pristine"
    assert await shell(sandbox, f"ls {temporary}; cat other 2> /dev/null || :") in {"outside\n", "outside\nother\n"}


async def test_a_tree_in_the_way_may_be_deep_and_wide(sandbox: AgentSandbox) -> None:
    # Deeper than a path may be long.
    deep = "import os\nfor n in range(1500):\n    os.mkdir('d' * 20); os.chdir('d' * 20)\nopen('f', 'x')"
    await shell(sandbox, f'mkdir tests; cd tests; python3 -c "{deep}"; for i in $(seq 200); do mkdir w$i; done')
    await sandbox.write_file(FileSpec("tests", b"pristine", replaces=True), anyio.Event())
    assert await shell(sandbox, "cat tests; ls") == "pristinetests\n"


async def test_the_links_of_the_system_are_not_in_the_way(sandbox: AgentSandbox) -> None:
    with pytest.raises(FileRefusedError):
        await sandbox.write_file(FileSpec("/bin/new/file", b"", replaces=True), anyio.Event())
    assert await shell(sandbox, "/bin/echo works") == "works\n"


@asynccontextmanager
async def _copy_of(
    sandbox: AgentSandbox, backend: AgentBackend, settings: SandboxSettings, place: Path
) -> AsyncIterator[AgentSandbox]:
    """A sandbox that begins with another's files; `place` is an empty directory."""
    await sandbox.pause()
    await sandbox.copy_files(place, _LIMIT, anyio.Event())
    await sandbox.resume()
    root = RootFilesystem(copy=place if backend.begins_with_copies else None)
    copy = await backend.create(replace(spec_for(settings, "copy"), root=root), lambda _: None)
    try:
        if not backend.begins_with_copies:
            await unpack_copy(copy, place, anyio.Event())
        yield copy
    finally:
        await copy.destroy()


async def test_a_copy_begins_with_the_files_of_its_original(
    sandbox: AgentSandbox, backend: AgentBackend, settings: SandboxSettings, tmp_path: Path
) -> None:
    temporary = sandbox.temporary_path("").rstrip("/")
    await shell(
        sandbox,
        "mkdir -p a/b empty __pycache__; echo one > a/b/file; chmod 700 a/b/file; ln a/b/file a/hard;"
        f" ln -s /nowhere a/link; truncate -s 100000 sparse; touch __pycache__/x.pyc {temporary}/left nothing;"
        " python3 -c \"import os, socket; os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')\";"
        " echo secret > closed; chmod 0 closed; mkdir -p shut/in; touch shut/in/file; chmod 0 shut; chmod 2755 empty",
    )
    async with _copy_of(sandbox, backend, settings, tmp_path) as copy:
        assert await shell(copy, "ls; readlink a/link; stat -c '%a %h' a/b/file; cat a/hard; stat -c %s sparse") == (
            "a\nclosed\nempty\nnothing\nshut\nsparse\n/nowhere\n700 2\none\n100000\n"
        )
        # What nobody may read is as it was, and it is all the copy's own.
        read = "stat -c %a closed shut; chmod 700 closed shut; cat closed; ls shut/in"
        assert await shell(copy, read) == "0\n0\nsecret\nfile\n"
        own = copy.temporary_path("").rstrip("/")
        assert await shell(copy, f"ls -A {own}; echo two > a/b/file; rm -r shut; touch new") == ""
    assert await shell(sandbox, "cat a/b/file; ls -d shut new 2> /dev/null; stat -c %a closed") == "one\nshut\n0\n"


async def test_a_copy_that_is_too_large_or_no_more_wanted_is_none(sandbox: AgentSandbox, tmp_path: Path) -> None:
    await shell(sandbox, "head -c 3000000 /dev/zero > large; for i in $(seq 100); do touch f$i; done")
    stop = anyio.Event()
    for name, limit in (("bytes", 1 << 20), ("files", 20 << 10)):
        place = tmp_path / name
        place.mkdir()
        with pytest.raises(CopyRefusedError) as refused:
            await sandbox.copy_files(place, limit, stop)
        assert refused.value.reason == "copy_too_large"
    stop.set()
    (tmp_path / "stopped").mkdir()
    with pytest.raises(StoppedError):
        await sandbox.copy_files(tmp_path / "stopped", _LIMIT, stop)


class _HeldUp:
    """Holds up a copy that asks whether it is to stop, until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def is_set(self) -> bool:
        return not self.go_on.wait(ANSWER_SECONDS)


async def test_copies_that_take_long_hold_up_nobody_else(sandbox: AgentSandbox, tmp_path: Path) -> None:
    # As many as there are threads for all else, and more.
    stop = _HeldUp()
    await shell(sandbox, "echo content > file")
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            place = tmp_path / str(number)
            place.mkdir()
            tasks.start_soon(sandbox.copy_files, place, _LIMIT, cast("anyio.Event", stop))
        try:
            with anyio.fail_after(ANSWER_SECONDS / 2):
                await sandbox.pause()
                await sandbox.resume()
                assert await shell(sandbox, "cat file") == "content\n"
        finally:
            stop.go_on.set()
