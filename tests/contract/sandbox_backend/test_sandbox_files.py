"""What every sandbox backend promises of files that go in and out."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import FileSpec
from callsheet.managers.sandbox.errors import FileRefusedError

from tests.support.sandboxes import run, shell


async def test_files_are_written_with_their_mode_and_directories(sandbox: AgentSandbox) -> None:
    await sandbox.write_file(FileSpec("a/b/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755), anyio.Event())
    await sandbox.write_file(FileSpec("a/b/data", b"one"), anyio.Event())
    await sandbox.write_file(FileSpec("a/b/data", b"two"), anyio.Event())
    assert await shell(sandbox, "a/b/run.sh; cat a/b/data; ls a/b") == "ran\ntwodata\nrun.sh\n"


async def test_a_large_file_arrives_whole(sandbox: AgentSandbox) -> None:
    await sandbox.write_file(FileSpec("large", bytes(5_000_000)), anyio.Event())
    assert await shell(sandbox, "wc -c < large") == "5000000\n"


async def test_a_file_replaces_a_link_instead_of_following_it(sandbox: AgentSandbox) -> None:
    await shell(sandbox, "echo kept > target; ln -s target link")
    await sandbox.write_file(FileSpec("link", b"new"), anyio.Event())
    assert await shell(sandbox, "cat target link; test ! -L link") == "kept\nnew"


async def test_a_path_through_a_link_is_refused(sandbox: AgentSandbox, tmp_path: Path) -> None:
    await shell(sandbox, f"ln -s {tmp_path} out; ln -s /tmp away")
    for path in ("out/file", "away/file"):
        with pytest.raises(FileRefusedError) as caught:
            await sandbox.write_file(FileSpec(path, b"x"), anyio.Event())
        assert caught.value.reason == "bad_path"
    assert not (tmp_path / "file").exists()


def _archive(*members: tarfile.TarInfo, content: bytes = b"content") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


@pytest.mark.parametrize("compress", [False, True])
async def test_archives_are_unpacked(sandbox: AgentSandbox, compress: bool) -> None:
    content = _archive(
        _member("pkg", tarfile.DIRTYPE, mode=0o755),
        _member("pkg/run", mode=0o4755),
        _member("pkg/alias", tarfile.SYMTYPE, "run"),
        _member("pkg/same", tarfile.LNKTYPE, "pkg/run"),
    )
    archive = FileSpec("into", gzip.compress(content) if compress else content, unpack=True)
    await sandbox.write_file(archive, anyio.Event())
    listing = await shell(sandbox, "cd into/pkg; stat -c '%n %a %F' *; cat alias same")
    assert listing.splitlines() == [
        "alias 777 symbolic link",
        "run 755 regular file",
        "same 755 regular file",
        "contentcontent",
    ]


@pytest.mark.parametrize(
    "member",
    [
        _member("/absolute"),
        _member("../climbs"),
        _member("a/../../climbs"),
        _member("link", tarfile.SYMTYPE, "/etc/passwd"),
        _member("link", tarfile.SYMTYPE, "../../outside"),
        _member("link", tarfile.LNKTYPE, "../outside"),
        _member("device", tarfile.CHRTYPE),
        _member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}".strip("-").replace("/", "_"),
)
async def test_dangerous_archive_members_are_refused(sandbox: AgentSandbox, member: tarfile.TarInfo) -> None:
    with pytest.raises(FileRefusedError):
        await sandbox.write_file(FileSpec("", _archive(member), unpack=True), anyio.Event())


async def test_an_archive_cannot_write_through_its_own_link(sandbox: AgentSandbox) -> None:
    content = _archive(_member("here", tarfile.SYMTYPE, "."), _member("here/file"))
    with pytest.raises(FileRefusedError):
        await sandbox.write_file(FileSpec("", content, unpack=True), anyio.Event())


async def test_what_is_no_archive_is_refused(sandbox: AgentSandbox) -> None:
    for content in (b"no archive" * 100, gzip.compress(b"no archive" * 100), b"\x1f\x8b broken"):
        with pytest.raises(FileRefusedError) as caught:
            await sandbox.write_file(FileSpec("", content, unpack=True), anyio.Event())
        assert caught.value.reason == "bad_archive"


async def test_staged_packages_are_found_and_cannot_be_changed(sandbox: AgentSandbox) -> None:
    assert (await run(sandbox, "python3", "-c", "import staged_module; print(staged_module.ANSWER)")).stdout == b"42\n"


async def test_an_added_python_path_keeps_the_staged_packages(sandbox: AgentSandbox) -> None:
    await sandbox.write_file(FileSpec("src/own_module.py", b"import staged_module"), anyio.Event())
    outcome = await run(sandbox, "python3", "-c", "import own_module", environment={"PYTHONPATH": "src"})
    assert not outcome.failed, outcome.stderr


async def test_temporary_files_can_be_read_back(sandbox: AgentSandbox) -> None:
    path = sandbox.temporary_path("report.xml")
    await shell(sandbox, f"echo content > {path}; mkfifo {path}.pipe; ln -s {path} {path}.link")
    assert await sandbox.read_temporary("report.xml", 100) == b"content\n"
    assert await sandbox.read_temporary("report.xml", 3) is None
    for name in ("missing.xml", "report.xml.pipe", "report.xml.link"):
        assert await sandbox.read_temporary(name, 100) is None
