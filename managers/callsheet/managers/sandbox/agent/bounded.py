"""Bounds things that no limit of the kernel counts, but about each of which the kernel asks: only a few at a time."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# What was allowed is there at once; a request that came to nothing within this was withdrawn, or is over already.
SECONDS_TO_APPEAR = 1.0


class Bounded:
    """Allows a number of something."""

    def __init__(self, most: int, count: Callable[[], int | None]) -> None:
        """Args:
        most: How many there may be at a time.
        count: Returns how many there are; None where that cannot be known.
        """
        self.most = most
        self.count = count
        # Threads whose own may still appear, with the times when they were allowed.
        self.awaited: dict[int, float] = {}

    def allows(self, _request: bytearray, thread: int, now: float) -> bool:
        """Answers one request of a thread."""
        count = self.count()
        return count is not None and self.take(count, thread, now)

    def take(self, count: int, thread: int, now: float) -> bool:
        """Returns whether a thread may have one more beside `count`. A thing that just appeared counts twice."""
        # It asks again: what it asked for before is there, or never will be.
        self.awaited.pop(thread, None)
        self.awaited = {
            other: since
            for other, since in self.awaited.items()
            if now - since < SECONDS_TO_APPEAR and os.path.exists(f"/proc/{other}")
        }
        if count + len(self.awaited) >= self.most:
            return False
        self.awaited[thread] = now
        return True
