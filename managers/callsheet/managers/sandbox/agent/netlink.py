"""Netlink sockets: the kernel counts what waits in them for nobody, so there are only a few.

Each keeps messages up to the size of its buffer. Programs open them for a moment, to ask for addresses.
"""

from __future__ import annotations

import os

# Of the network namespace that the reader is in.
PROTOCOLS = "/proc/net/protocols"
NAME, SOCKETS = b"NETLINK", 2
# What was allowed becomes a socket at once; a request that became none within this was withdrawn, or is over already.
SECONDS_TO_APPEAR = 1.0


class NetlinkSockets:
    """Allows a number of them."""

    def __init__(self, most: int) -> None:
        """Args: most: How many there may be at a time."""
        self.most = most
        # Threads whose sockets may still appear, with the times when they were allowed.
        self.awaited: dict[int, float] = {}

    def allows(self, _request: bytearray, thread: int, now: float) -> bool:
        """Answers one request of a thread."""
        count = count_sockets()
        return count is not None and self.take(count, thread, now)

    def take(self, count: int, thread: int, now: float) -> bool:
        """Whether a thread may have one more beside a number that is there. What has just appeared counts twice."""
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


def count_sockets() -> int | None:
    """Returns how many there are, wherever their descriptors are; None where that cannot be known."""
    try:
        with open(PROTOCOLS, "rb") as file:
            words = next(line.split() for line in file if line.startswith(NAME))
        return int(words[SOCKETS])
    except (OSError, StopIteration, ValueError, IndexError):
        return None
