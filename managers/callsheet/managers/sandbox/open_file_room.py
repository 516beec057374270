"""Keeps open files for what a manager has begun: what begins anew waits until there are some.

A manager has one or two open for each sandbox, some more for each command, and many for a moment while it makes one.
"""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from callsheet.managers.clock import standing_still
from callsheet.managers.open_files import raise_open_files
from callsheet.managers.sandbox.errors import StoppedError
from callsheet.timing.waits import Cause

# Who may open as many need not count them, which takes long.
_PLENTY = 1 << 16
_OF_A_SANDBOX, _OF_A_COMMAND, _OF_A_CREATION = 2, 12, 25
# What the commands of those that are there have left.
_FOR_COMMANDS = 64
_LOOK_S = 0.05
_OPEN = "/proc/self/fd"


class OpenFileRoom:
    """The room for open files of this process.

    Attributes:
        most_creations: How many sandboxes may be made at once.
    """

    def __init__(self) -> None:
        """Lets this process open as many files as it may."""
        raise_open_files()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_creations = max(1, self._most // 128)
        self._promised = 0

    @asynccontextmanager
    async def some(self, stop: anyio.Event | None = None) -> AsyncIterator[None]:
        """Waits until there are enough for a command; without `stop`, for a sandbox that leaves enough for others.

        Raises:
            StoppedError: `stop` is set.
        """
        count, beside = _OF_A_COMMAND, _OF_A_CREATION
        if stop is None:
            count, beside = _OF_A_SANDBOX, _FOR_COMMANDS + _OF_A_CREATION * min(8, self.most_creations)
        needed = count + min(beside, self._most // 2)
        # Before Linux 6.2 they are listed to be counted.
        while self._most < _PLENTY and (
            (os.stat(_OPEN).st_size or len(os.listdir(_OPEN))) + self._promised + needed > self._most
        ):
            if stop is not None and stop.is_set():
                raise StoppedError
            # Nothing tells when there are some again.
            with standing_still(Cause.SANDBOX):
                await anyio.sleep(_LOOK_S)
        self._promised += count
        try:
            yield
        finally:
            self._promised -= count
