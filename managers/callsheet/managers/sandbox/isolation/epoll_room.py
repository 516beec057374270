"""Keeps room for files that are watched by epoll, where all sandboxes have the manager's own user.

The kernel has one number of them for each user, and one process can take it all. Then no event loop of that user takes
a further file: commands fail, and so would the manager, whose own loop therefore does without (`managers.event_loop`).
Before a command starts it is tried whether there is room; if not, the sandbox that watches most is found, and its
commands end.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

import anyio
from callsheet.managers.sandbox.isolation.takers import Takers, open_file_details, watched_by_epoll

# So many watches are no program's need.
_CERTAIN = 100_000
# What was killed lets go of its watches one by one.
_ROOM_SECONDS = 20.0
_LOOK_SECONDS = 0.05


def is_there_room() -> bool:
    """Whether this user may watch one more file."""
    reader, writer = os.pipe()
    try:
        with select.epoll() as watcher:
            watcher.register(reader, select.EPOLLIN)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    finally:
        os.close(reader)
        os.close(writer)
    return True


class EpollRoom:
    """Makes room."""

    def __init__(self, takers: Takers, is_there: Callable[[], bool] = is_there_room) -> None:
        """Args: takers: The sandboxes that can hold it. is_there: Whether there is room."""
        self._takers = takers
        self._is_there = is_there

    async def make(self) -> None:
        """Returns at once if there is room. Else ends commands of the greatest taker, and waits for a while."""
        if self._is_there():
            return
        await self._takers.end_greatest("epoll_watches", watches, _CERTAIN)
        with anyio.move_on_after(_ROOM_SECONDS):
            while not self._is_there():  # noqa: ASYNC110 - nothing tells when there is some again
                await anyio.sleep(_LOOK_SECONDS)


def watches(root: int) -> int:
    """Returns how many files all processes below one watch by epoll, up to `_CERTAIN` and more."""
    return open_file_details(root, watched_by_epoll, certain=_CERTAIN)
