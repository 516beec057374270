"""What a caller holds while an item is open: two moments, acceptance and end, that any number of tasks can await."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from callsheet.client.errors import CallsheetError
from callsheet.client.live_output import LiveOutput

T = TypeVar("T")


class Ticket(Generic[T]):
    """Waits for one item of a session.

    Unlike a future it can be awaited by several tasks, and a cancelled one of them disturbs none of the others. Errors
    are kept as values until somebody awaits, so a ticket that nobody awaits makes no noise.

    Attributes:
        owners: Callers that want the end of the item.
        cancel_requested: Whether a cancel of the action is on its way.
        output: Takes what the action prints, if it is to be sent.
    """

    __slots__ = ("_acceptance", "_accepted", "_end", "_ended", "_value", "cancel_requested", "output", "owners")

    def __init__(self) -> None:
        self.owners = 1
        self.cancel_requested = False
        self.output: LiveOutput | None = None
        self._accepted = False
        self._ended = False
        self._value: T | CallsheetError | None = None
        self._acceptance: list[asyncio.Future[None]] = []
        self._end: list[asyncio.Future[None]] = []

    @property
    def has_ended(self) -> bool:
        """Whether the end is known."""
        return self._ended

    def accept(self) -> None:
        """Tells that the scheduler has made the item durable."""
        self._accepted = True
        _wake(self._acceptance)

    def settle(self, ended: T | CallsheetError | None) -> None:
        """Tells the end of the item."""
        self._value = ended
        self._ended = True
        if self.output is not None:
            self.output.end()
        _wake(self._acceptance)
        _wake(self._end)

    async def accepted(self) -> None:
        """Returns once the item is durable.

        Raises:
            CallsheetError: It ended in an error.
        """
        if not (self._accepted or self._ended):
            await _wait(self._acceptance)
        if isinstance(self._value, CallsheetError):
            raise self._value

    async def end(self) -> T | None:
        """Returns the end of the item: an outcome for a submit, otherwise None.

        Raises:
            CallsheetError: It ended in an error.
        """
        if not self._ended:
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
