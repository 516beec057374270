"""Waits of an attempt, and units granted to it over time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar
from math import inf
from time import monotonic
from typing import TypeVar

import anyio
from callsheet.timing.waits import SHORTEST_WAIT_S, Cause

T = TypeVar("T")


class Waits:
    """Waits of one attempt.

    Attributes:
        seconds: Seconds by cause, of the waits that are over and that the execution clock has counted.
        stood: Seconds by cause, of the waits for which that clock stood.
        stand: Makes that clock stand for the length of a block.
    """

    def __init__(self) -> None:
        """It has not waited."""
        self.seconds: dict[Cause, float] = {}
        self.stood: dict[Cause, float] = {}
        self.stand: Callable[[], AbstractContextManager[None]] = nullcontext
        self._under_way: tuple[Cause, float] | None = None

    def until(self, now: float) -> dict[Cause, float]:
        """Returns `seconds` at the monotonic time `now`, with the wait that is under way."""
        seconds = dict(self.seconds)
        if self._under_way is not None and now > self._under_way[1]:
            cause, began = self._under_way
            seconds[cause] = seconds.get(cause, 0.0) + now - began
        return seconds

    def add(self, cause: Cause, seconds: float, *, counted: bool = True) -> None:
        """Notes a wait that is over; `counted` says whether the execution clock ran."""
        noted = self.seconds if counted else self.stood
        if seconds >= SHORTEST_WAIT_S:
            noted[cause] = noted.get(cause, 0.0) + seconds

    @contextmanager
    def on(self, cause: Cause, *, counted: bool = True) -> Iterator[None]:
        """Notes what a block takes, see `add`. Of blocks within each other the outermost counts."""
        if self._under_way is not None:
            yield
            return
        began = monotonic()
        self._under_way = (cause, began if counted else inf)
        try:
            yield
        finally:
            self._under_way = None
            self.add(cause, monotonic() - began, counted=counted)


_WAITS: ContextVar[Waits] = ContextVar("callsheet_waits")


def note_waits(waits: Waits) -> None:
    """Has the waits of this task, and of those that it starts, noted there."""
    _WAITS.set(waits)


def waiting(cause: Cause) -> AbstractContextManager[None]:
    """Notes what a block takes as a wait of the attempt whose task this is; of none where it is nobody's."""
    waits = _WAITS.get(None)
    return nullcontext() if waits is None else waits.on(cause)


@contextmanager
def standing_still(cause: Cause) -> Iterator[None]:
    """Notes a wait like `waiting`, for which the attempt's execution clock stands."""
    waits = _WAITS.get(None) or Waits()
    with waits.stand(), waits.on(cause, counted=False):
        yield


@asynccontextmanager
async def after_waiting(cause: Cause, wanted: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Gives what a context gives. The way into it is a wait, except into a lock that is free.

    A busy machine may stop this process for milliseconds while it takes a free lock: nobody held that.
    """
    async with AsyncExitStack() as stack:
        is_free = isinstance(wanted, anyio.Lock) and not wanted.locked()
        with nullcontext() if is_free else waiting(cause):
            entered = await stack.enter_async_context(wanted)
        yield entered


class SharedTime:
    """Shares out the time in which anything runs among all that does: n at once have an n-th each, so none is lost."""

    def __init__(self) -> None:
        """Nothing runs."""
        self._running = 0
        self._share_s = 0.0
        self._at = 0.0

    @contextmanager
    def part(self) -> Iterator[Callable[[], float]]:
        """Takes part for the length of a block; gives a function that returns its share so far, in seconds."""
        began_s = self._advance()
        self._running += 1
        try:
            yield lambda: self._advance() - began_s
        finally:
            self._advance()
            self._running -= 1

    def _advance(self) -> float:
        """Returns the seconds that an attempt would have had if it had run from the beginning."""
        now = monotonic()
        if self._running:
            self._share_s += (now - self._at) / self._running
        self._at = now
        return self._share_s


class GrantMeter:
    """Integrates granted units over the seconds that an attempt executes, following resizes. Pure.

    `now` is how long it has executed: nothing that waits is granted.
    """

    __slots__ = ("_since", "_total", "_units")

    def __init__(self, units: Mapping[str, int], now: float) -> None:
        self._units = dict(units)
        self._total: dict[str, float] = {}
        self._since = now

    def change(self, units: Mapping[str, int], now: float) -> None:
        """Notes that from now on `units` are granted."""
        self._total = self.unit_seconds(now)
        self._units = dict(units)
        self._since = now

    def unit_seconds(self, now: float) -> dict[str, float]:
        """Returns unit-seconds by resource up to now."""
        held_s = max(0.0, now - self._since)
        total = dict(self._total)
        for resource, units in self._units.items():
            total[resource] = total.get(resource, 0.0) + units * held_s
        return total
