"""The files of one sandbox."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

from callsheet.client import Command, CommandResult
from callsheet.integrations.e2b import file_texts
from callsheet.integrations.e2b.messages import Body
from callsheet.integrations.e2b.processes import RemoteProcesses
from callsheet.integrations.sandboxes.remote import RemoteSandbox


class Filesystem:
    """File operations of E2B's clients. All of them raise E2bError."""

    def __init__(self, sandbox: RemoteSandbox, processes: RemoteProcesses) -> None:
        """Args:
        sandbox: The sandbox that has the files.
        processes: Processes that make way for a request.
        """
        self._sandbox = sandbox
        self._processes = processes

    async def read(self, path: str) -> AsyncIterator[bytes]:
        """Returns a file's parts; what is wrong with it is raised at once, and not by the iteration."""
        first = await self._read_part(path, 0)
        return self._parts(path, first)

    async def write(self, path: str, content: bytes) -> Body:
        """Writes a file, and the directories above it."""
        result = await self._run(path, file_texts.write_command(path, content))
        return file_texts.written(result.stdout.decode(errors="backslashreplace"))

    async def stat(self, path: str) -> Body:
        """Describes what has a path."""
        marker = _marker()
        return await self._entry(path, file_texts.stat_command(path, marker), marker)

    async def list(self, path: str, depth: int) -> list[Body]:
        """Describes what is in a directory."""
        marker = _marker()
        result = await self._run(path, file_texts.list_command(path, depth, marker))
        return file_texts.entries_of(result.stdout, marker)

    async def make(self, path: str) -> Body:
        """Makes a directory, and those above it."""
        marker = _marker()
        return await self._entry(path, file_texts.make_command(path, marker), marker)

    async def move(self, source: str, destination: str) -> Body:
        """Renames a file or a directory."""
        marker = _marker()
        return await self._entry(source, file_texts.move_command(source, destination, marker), marker)

    async def remove(self, path: str) -> None:
        """Removes a file or a directory; nothing to do if there is none."""
        await self._run(path, file_texts.remove_command(path))

    async def _parts(self, path: str, first: bytes) -> AsyncIterator[bytes]:
        part, read = first, 0
        while True:
            yield part
            read += len(part)
            if len(part) < file_texts.PART_BYTES:
                return
            part = await self._read_part(path, read)

    async def _read_part(self, path: str, begin: int) -> bytes:
        return (await self._run(path, file_texts.read_command(path, begin))).stdout

    async def _entry(self, path: str, command: Command, marker: str) -> Body:
        result = await self._run(path, command)
        return file_texts.entries_of(result.stdout, marker)[0]

    async def _run(self, path: str, command: Command) -> CommandResult:
        self._processes.note_request()
        result = await self._sandbox.run(command, "e2b_files")
        file_texts.check(path, result)
        return result


def _marker() -> str:
    return secrets.token_hex(16)
