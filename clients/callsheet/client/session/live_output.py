"""What a command prints while it runs, between the session that gets it and the task that reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from callsheet.client.words.results import OutputChunk, OutputStream

MAX_WAITING_BYTES = 1024 * 1024
"""Output that waits for its reader; beyond that the oldest is dropped."""


class LiveOutput:
    """The output of one action. Bounded, so that a reader that is slow loses some of it and is told how much.

    For one reader at a time: several get different parts.
    """

    __slots__ = ("_bytes", "_changed", "_ended", "_read_to", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[OutputStream, int, bytes]] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._read_to: dict[OutputStream, int] = {}

    def put(self, stream: OutputStream, offset: int, content: bytes) -> None:
        """Takes the next part; `offset` are the bytes of this output before it."""
        self._waiting.append((stream, offset, content))
        self._bytes += len(content)
        while self._bytes > MAX_WAITING_BYTES and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.popleft()[2])
        self._changed.set()

    def end(self) -> None:
        """Tells that nothing more comes."""
        self._ended = True
        self._changed.set()

    async def chunks(self) -> AsyncIterator[OutputChunk]:
        """Yields the parts in the order in which they came, until the end."""
        while True:
            while self._waiting:
                yield self._take()
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def _take(self) -> OutputChunk:
        stream, offset, content = self._waiting.popleft()
        self._bytes -= len(content)
        dropped = max(0, offset - self._read_to.get(stream, 0))
        self._read_to[stream] = offset + len(content)
        return OutputChunk(stream, content, offset, dropped)
