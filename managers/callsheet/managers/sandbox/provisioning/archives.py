"""Snapshots where there are no overlays: archives of the two writable directories, made and unpacked inside.

tar runs in the sandbox, so whatever an archive holds can only do there what the set-up could do as well.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.errors import StoppedError
from callsheet.managers.sandbox.files.changes import ChangesTooLargeError

# An archive passes through the manager's memory.
MOST_ARCHIVE_BYTES = 256 << 20
# Without the directory itself, which may belong to another user and stays as it is.
_ARCHIVE = 'cd "$0" && find . ! -name . -prune -print0 | tar -c --null -T - -f -'
_WORK, _TEMPORARY = "work.tar", "temporary.tar"


class ArchiveError(Exception):
    """tar did not do its work inside; the message says why."""


async def save_archives(sandbox: AgentSandbox, target: Path, limit_bytes: int, stop: anyio.Event) -> int:
    """Writes archives of the sandbox's directories into a directory; returns their bytes.

    Raises:
        ChangesTooLargeError: They are larger than `limit_bytes`, or than what may pass through memory.
        ArchiveError: tar failed.
        StoppedError: `stop` was set meanwhile.
    """
    total = 0
    for name, place in _places(sandbox).items():
        limit = min(limit_bytes - total, MOST_ARCHIVE_BYTES)
        command = CommandSpec(("/bin/sh", "-c", _ARCHIVE, place), max_output_bytes=max(1, limit))
        outcome = await sandbox.execute(command, stop)
        if outcome.stopped:
            raise StoppedError
        if outcome.stdout_dropped or len(outcome.stdout) > limit:
            raise ChangesTooLargeError(f"an archive of {place} has more than {limit} bytes")
        if outcome.failed:
            raise ArchiveError(outcome.stderr[-500:].decode(errors="replace").strip())
        await anyio.to_thread.run_sync((target / name).write_bytes, outcome.stdout)
        total += len(outcome.stdout)
    return total


async def unpack_copy(sandbox: AgentSandbox, source: Path, stop: anyio.Event) -> None:
    """Fills the working directory of a fresh sandbox with what `Sandbox.copy_files` put into a directory.

    Raises:
        ArchiveError: tar failed, here or inside.
        StoppedError: `stop` was set meanwhile.
    """
    packed = await anyio.run_process(["tar", "-C", str(source / "work"), "-c", "-f", "-", "."], check=False)
    if packed.returncode:
        raise ArchiveError(packed.stderr[-500:].decode(errors="replace").strip())
    await _unpack(sandbox, packed.stdout, ".", stop)


async def restore_archives(sandbox: AgentSandbox, source: Path, stop: anyio.Event) -> None:
    """Fills the directories of a fresh sandbox from archives.

    Raises:
        ArchiveError: tar failed.
        StoppedError: `stop` was set meanwhile.
    """
    for name, place in _places(sandbox).items():
        content = await anyio.to_thread.run_sync((source / name).read_bytes)
        await _unpack(sandbox, content, place, stop)


async def _unpack(sandbox: AgentSandbox, content: bytes, place: str, stop: anyio.Event) -> None:
    command = CommandSpec(("tar", "-x", "-p", "--no-same-owner", "-f", "-", "-C", place), stdin=content)
    outcome = await sandbox.execute(command, stop)
    if outcome.stopped:
        raise StoppedError
    if outcome.failed:
        raise ArchiveError(outcome.stderr[-500:].decode(errors="replace").strip())


def _places(sandbox: AgentSandbox) -> dict[str, str]:
    # Commands begin in the working directory.
    return {_WORK: ".", _TEMPORARY: sandbox.temporary_path("")}
