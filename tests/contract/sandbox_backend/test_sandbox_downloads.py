"""What every sandbox backend promises of files that are read from a sandbox."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.errors import FileRefusedError, StoppedError

from tests.support.sandboxes import shell

pytestmark = pytest.mark.anyio


async def read(sandbox: AgentSandbox, path: str, limit: int = 1 << 20) -> bytes:
    return await sandbox.read_file(path, limit, anyio.Event())


async def test_files_are_read_whole(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "mkdir -p a/b; printf content > a/b/file; : > empty; head -c 700000 /dev/zero > large")
    assert await read(sandbox, "a/b/file") == b"content"
    assert await read(sandbox, "empty", 0) == b""
    assert await read(sandbox, "large") == bytes(700_000)


async def test_a_file_may_have_exactly_the_limit(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "printf content > file")
    assert await read(sandbox, "file", 7) == b"content"
    for limit in (0, 1, 6):
        with pytest.raises(FileRefusedError) as caught:
            await read(sandbox, "file", limit)
        assert caught.value.reason == "too_large"


async def test_an_endless_file_is_too_large(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "truncate -s 1T sparse")
    with pytest.raises(FileRefusedError) as caught:
        await read(sandbox, "sparse")
    assert caught.value.reason == "too_large"


async def test_what_is_no_file_is_refused_by_name(sandbox: AgentSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    await shell(sandbox, f"mkdir dir; mkfifo pipe; ln -s {tmp_path} out; ln -s {tmp_path}/secret link; echo x > real")
    await shell(sandbox, "ln -s real inside; ln -s /etc/passwd system; ln -s /proc/self/environ environment")
    links = ("link", "out/secret", "inside", "system", "environment")
    for path in ("dir", "pipe", "real/below", *links):
        with pytest.raises(FileRefusedError) as caught:
            await read(sandbox, path)
        assert (path, caught.value.reason) == (path, "not_a_file")
    for path in ("missing", "dir/missing"):
        with pytest.raises(FileRefusedError) as caught:
            await read(sandbox, path)
        assert (path, caught.value.reason) == (path, "missing")


async def test_a_path_that_climbs_is_refused_by_the_agent_as_well(sandbox: AgentSandbox) -> None:
    for path in ("../file", "/../etc/passwd", "a/../../file"):
        with pytest.raises(FileRefusedError):
            await read(sandbox, path)


async def test_a_stop_ends_a_read(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "truncate -s 1T sparse")
    stop = anyio.Event()
    stop.set()
    with pytest.raises(StoppedError):
        await sandbox.read_file("sparse", 1 << 40, stop)
    assert await shell(sandbox, "echo alive") == "alive\n"
