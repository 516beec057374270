"""The log of a process: a file that only its owner can read, bounded by one older file beside it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LOG_BYTES = 64 << 20
"""A file that has grown beyond this becomes the old one."""

_CHUNK = 65_536


class BoundedLog:
    """Appends to a file. What cannot be written, as on a full disk, is dropped: the process is to go on."""

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        self.path = path
        self._most = most_bytes
        self._descriptor = -1
        self._size = 0

    def write(self, content: bytes) -> None:
        """Appends."""
        try:
            if self._descriptor < 0 or self._size > self._most:
                self._reopen()
            self._size += os.write(self._descriptor, content)
        except OSError:
            return

    def _reopen(self) -> None:
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > self._most:
            self.path.replace(self.path.with_suffix(".log.old"))
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Closes the file; another write opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LoggedOutput:
    """Reads what a process prints into its log, as long as the event loop runs.

    Attributes:
        write_end: What the process is given as its outputs; closed here once it has it.
    """

    def __init__(self, path: Path) -> None:
        self._log = BoundedLog(path)
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._take)

    def drain(self) -> None:
        """Takes what was printed and not read yet."""
        while self._read_end >= 0 and self._take():
            pass

    def close(self) -> None:
        """Takes what is left, and listens no longer."""
        self.drain()
        self._end()
        self._log.close()

    def _take(self) -> bool:
        try:
            content = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return False
        if not content:
            self._end()
        self._log.write(content)
        return bool(content)

    def _end(self) -> None:
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
