"""One value per process and running event loop: gRPC channels belong to the loop they were made in."""

from __future__ import annotations

import asyncio
import os
from typing import Generic, TypeVar

T = TypeVar("T")


class _Forks:
    """Counts the forks between this process and the one that imported this: asking for its id takes a system call."""

    behind = 0

    @classmethod
    def count(cls) -> None:
        cls.behind += 1


# Not every system forks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forks.count)


class PerLoop(Generic[T]):
    """Values by event loop; a forked child starts empty."""

    def __init__(self) -> None:
        self._forks = _Forks.behind
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T | None:
        """Returns the value of the running loop, if it has one."""
        if self._forks != _Forks.behind:
            self._forks = _Forks.behind
            self._values = {}
        return self._values.get(asyncio.get_running_loop())

    def put(self, value: T) -> None:
        """Sets the value of the running loop, and forgets those of loops that were closed."""
        for loop in tuple(self._values):
            if loop.is_closed():
                self._values.pop(loop, None)
        self._values[asyncio.get_running_loop()] = value

    def take_all(self) -> dict[asyncio.AbstractEventLoop, T]:
        """Returns all values of this process by their loops, and forgets them."""
        self.get()
        values, self._values = self._values, {}
        return values
