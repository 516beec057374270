"""Long answers, and long messages that are read, in turns with all else that an event loop does."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

import anyio.lowlevel

A = TypeVar("A")
T = TypeVar("T")

TURN_S: Final = 0.005
"""A turn is over after so long, if one of its things takes no longer."""


class LoopTurn:
    """The turn of somebody who does many small things on an event loop."""

    def __init__(self) -> None:
        """Begins now."""
        self._began = time.perf_counter()

    async def next_thing(self) -> None:
        """Between two things: gives way to others once the turn is over, and begins another."""
        if time.perf_counter() - self._began >= TURN_S:
            await anyio.lowlevel.checkpoint()
            self._began = time.perf_counter()


async def in_turns(parts: Generator[None, None, A]) -> A:
    """Returns the result of a generator. Between its parts others have their turns."""
    turn = LoopTurn()
    while True:
        try:
            next(parts)
        except StopIteration as end:
            answer: A = end.value
            return answer
        await turn.next_thing()


def made_of(items: Iterable[T], make: Callable[[T], A]) -> Generator[None, None, list[A]]:
    """Makes something of each item, in parts; what there is now is what counts."""
    made = []
    for item in list(items):
        made.append(make(item))
        yield
    return made
