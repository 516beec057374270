"""The ticket of an open item: any number of tasks can await its acceptance and its end.

Between them comes the output of a command while it runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from callsheet.client.errors import CallsheetError
from callsheet.client.words.results import OutputChunk
from callsheet.v1.common_values import OutputStream

T = TypeVar("T")
MAX_WAITING_BYTES = 1024 * 1024
"""Output that waits for its reader; beyond that the oldest is dropped."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """Waits for one item of a session.

    Unlike a future it can be awaited by several tasks, and a cancelled one of them disturbs none of the others. Errors
    are kept as values until somebody awaits, so a ticket that nobody awaits makes no noise.

    Attributes:
        on_end: Called with the end, once.
        owners: Callers that want the end of the item.
        cancel_requested: True if a cancel of the action is on its way.
        output: Takes the output of the action, if it is requested.
        has_ended: True once the end is known.
    """

    on_end: Callable[[], None] | None = None
    owners: int = 1
    cancel_requested: bool = False
    output: LiveOutput | None = None
    has_ended: bool = False
    _accepted: bool = False
    _value: T | CallsheetError | None = None
    _acceptance: list[asyncio.Future[None]] = field(default_factory=list)
    _end: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def value(self) -> T | CallsheetError | None:
        """The end of the item, once it is known."""
        return self._value

    def accept(self) -> None:
        """Notes that the scheduler has made the item durable."""
        self._accepted = True
        _wake(self._acceptance)

    def settle(self, ended: T | CallsheetError | None) -> None:
        """Notes the end of the item."""
        self._value = ended
        self.has_ended = True
        if self.output is not None:
            self.output.end()
        _wake(self._acceptance)
        _wake(self._end)
        if self.on_end is not None:
            self.on_end()

    async def accepted(self) -> None:
        """Returns once the item is durable.

        Raises:
            CallsheetError: It ended in an error.
        """
        if not (self._accepted or self.has_ended):
            await _wait(self._acceptance)
        if isinstance(self._value, CallsheetError):
            raise self._value

    async def end(self) -> T | None:
        """Returns the end of the item: an outcome for a submit, otherwise None.

        Raises:
            CallsheetError: It ended in an error.
        """
        if not self.has_ended:
            await _wait(self._end)
        if isinstance(self._value, CallsheetError):
            raise self._value
        return self._value


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


async def _wait(waiting: list[asyncio.Future[None]]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(future)
    try:
        await future
    finally:
        waiting.remove(future)


class LiveOutput:
    """The output of one action. Bounded, so a slow reader loses a part of it and gets the number of lost bytes.

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
        """Ends the output."""
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
