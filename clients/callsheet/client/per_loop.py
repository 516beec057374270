"""One value per process and running event loop: gRPC channels belong to the loop they were made in."""

from __future__ import annotations

import asyncio
import os
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Values by event loop; a forked child starts empty."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T | None:
        """Returns the value of the running loop, if it has one."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
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
