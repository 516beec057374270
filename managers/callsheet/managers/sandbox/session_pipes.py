"""The manager's ends of a session's pipes for steps and for their ends, on the event loop."""

from __future__ import annotations

import asyncio
import os

import anyio
from callsheet.managers.sandbox.capture import ReadPipe
from callsheet.managers.sandbox.session_text import StatusScanner


class StepPipe:
    """Where a session reads its steps."""

    def __init__(self) -> None:
        """Must be made and used on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._writable = anyio.Event()

    async def write(self, content: bytes) -> None:
        """Writes a step; returns early when nobody reads any more, or it was closed."""
        left = memoryview(content)
        while left and self._write_end >= 0:
            try:
                left = left[os.write(self._write_end, left) :]
            except BlockingIOError:
                await self._until_writable()
            except BrokenPipeError:
                return

    def close_read_end(self) -> None:
        """Drops this process's own copy of the session's end."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close(self) -> None:
        """Ends it; a session that waits for its next step ends."""
        self.close_read_end()
        if self._write_end >= 0:
            self._loop.remove_writer(self._write_end)
            os.close(self._write_end)
            self._write_end = -1
            self._writable.set()

    async def _until_writable(self) -> None:
        self._writable = anyio.Event()
        self._loop.add_writer(self._write_end, self._writable.set)
        try:
            await self._writable.wait()
        finally:
            if self._write_end >= 0:
                self._loop.remove_writer(self._write_end)


class StepEnd:
    """The end of one step; `status` stays None if the session ended first."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.status: int | None = None


class StatusPipe(ReadPipe):
    """Where a session says that a step ended. What it says is untrusted, and read at any time so that nobody blocks."""

    def __init__(self) -> None:
        """Must be made and used on the event loop's thread."""
        self._scanner: StatusScanner | None = None
        self._end = StepEnd()
        super().__init__()

    def expect(self, marker: str) -> StepEnd:
        """Returns the end of the step that is marked so."""
        self._scanner = StatusScanner(marker)
        self._end = StepEnd()
        return self._end

    def _take(self, chunk: bytes) -> None:
        status = self._scanner.feed(chunk) if self._scanner is not None else None
        if status is not None:
            self._scanner = None
            self._end.status = status
            self._end.reached.set()
