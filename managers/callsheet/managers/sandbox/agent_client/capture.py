"""Bounded capture of a command's output: the head and the tail are kept, the middle is counted."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable

# As much as a pipe holds.
_CHUNK = 65536

ChunkListener = Callable[[bytes], None]


class HeadTailBuffer:
    """Keeps at most `limit` bytes of a stream: its first half and its last half."""

    def __init__(self, limit: int) -> None:
        """Args: limit: Bytes to keep, at least 1."""
        if limit < 1:
            raise ValueError(f"limit: {limit}: must be at least 1")
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes appended so far."""
        return self._total

    @property
    def dropped(self) -> int:
        """Bytes left out between head and tail."""
        return max(0, self._total - self._head_limit - self._tail_limit)

    def append(self, chunk: bytes) -> None:
        """Adds the next bytes of the stream."""
        self._total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Cutting at twice the limit instead of at every chunk keeps the cost linear in the stream.
        if len(self._tail) > 2 * self._tail_limit:
            self._cut_tail()

    def content(self) -> bytes:
        """Returns head and tail; without a gap when nothing was dropped."""
        self._cut_tail()
        return bytes(self._head + self._tail)

    def _cut_tail(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]


class ReadPipe(ABC):
    """A pipe that a process of a sandbox writes into and the event loop empties once `watch` was called.

    Attributes:
        write_end: The descriptor to hand to the process; -1 once this process has no copy of it.
        is_open: Whether somebody may still write.
    """

    def __init__(self) -> None:
        """Must be made and used on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.is_open = True
        self._is_watched = False

    def watch(self) -> None:
        """Has the event loop empty it from now on."""
        if self.is_open and not self._is_watched:
            self._loop.add_reader(self._read_end, self._take_some)
            self._is_watched = True

    def close_write_end(self) -> None:
        """Drops this process's own copy of the write end; without this the end is never seen."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        """Stops reading. Writers that are left get a broken pipe."""
        self.close_write_end()
        if self.is_open:
            self.is_open = False
            if self._is_watched:
                self._loop.remove_reader(self._read_end)
            os.close(self._read_end)

    @abstractmethod
    def _take(self, chunk: bytes) -> None:
        """Takes what was read."""

    def _take_some(self) -> int:
        """Reads one chunk; returns its length, 0 if there was none."""
        try:
            chunk = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return 0
        if chunk:
            self._take(chunk)
        else:
            self.close()
        return len(chunk)


class OutputPipe(ReadPipe):
    """A pipe that a command writes into.

    A background process may hold the pipe after its command ended. `finish` then takes what was written until that
    moment, and the rest is read and dropped, so that the process neither blocks nor dies of a broken pipe.
    """

    def __init__(self, limit: int, on_chunk: ChunkListener | None = None) -> None:
        """Must be made and used on the event loop's thread.

        Args:
            limit: Bytes to keep.
            on_chunk: Gets what is read while it is kept.
        """
        self._on_chunk = on_chunk
        self._buffer: HeadTailBuffer = HeadTailBuffer(limit)
        self._keeping = True
        super().__init__()

    @property
    def buffer(self) -> HeadTailBuffer:
        """Returns the captured output."""
        return self._buffer

    def give_write_end(self) -> int:
        """Returns the descriptor to hand to the command; the caller closes it."""
        given, self.write_end = self.write_end, -1
        return given

    def finish(self) -> None:
        """Takes what the pipe holds now; everything later is dropped."""
        # More than that was written since.
        left = _CHUNK
        while self.is_open and left > 0:
            taken = self._take_some()
            if not taken:
                break
            left -= taken
        self._keeping = False

    def begin(self, limit: int, on_chunk: ChunkListener | None = None) -> None:
        """Forgets everything so far, what the pipe holds included, and keeps what comes from here on."""
        self._keeping = False
        self.finish()
        self._buffer, self._on_chunk, self._keeping = HeadTailBuffer(limit), on_chunk, True

    def _take(self, chunk: bytes) -> None:
        if self._keeping:
            self._buffer.append(chunk)
            if self._on_chunk is not None:
                self._on_chunk(chunk)
