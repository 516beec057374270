"""Anonymous shared mappings, where no group counts their memory: the kernel asks about each one, and this counts.

Such memory lives until no process has any part of its mapping any more, and so long /proc/PID/maps shows its inode.
What was allowed is therefore counted until its inode is nowhere. Which inode belongs to which request is not told:
requests that overlap, and the inodes that are new after them, are let go together.
"""

from __future__ import annotations

import os
import sys

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Of struct seccomp_notif: the length that is wanted.
LENGTH = slice(40, 48)
NAME = b"/dev/zero (deleted)"
# What was allowed becomes a mapping at once; a request that became none within this was withdrawn, or is over already.
SECONDS_TO_APPEAR = 5.0


class Allowed:
    """Requests that were allowed, with the inodes that came of them. Two that overlap cannot be told apart."""

    def __init__(self, size: int, thread: int, now: float) -> None:
        self.size = size
        self.since = now
        # The threads whose mappings may still appear.
        self.waiting = {thread}
        self.inodes: set[bytes] = set()

    def join(self, other: Allowed) -> None:
        """Takes another one over."""
        self.size += other.size
        self.since = max(self.since, other.since)
        self.waiting |= other.waiting
        self.inodes |= other.inodes


class SharedMemory:
    """Counts the anonymous shared memory of the sandbox."""

    def __init__(self, most: int) -> None:
        """Args: most: Bytes that there may be."""
        self.most = most
        self.allowed: list[Allowed] = []

    def allows(self, request: bytearray, thread: int, now: float) -> bool:
        """Answers one request of a thread."""
        length = -(-int.from_bytes(request[LENGTH], sys.byteorder) // PAGE_BYTES) * PAGE_BYTES
        return self.take(length, thread, now)

    def take(self, length: int, thread: int, now: float) -> bool:
        """Counts a request of a thread, if it fits."""
        inodes, complete = find_inodes()
        self.update(inodes, complete, thread, now)
        if sum(allowed.size for allowed in self.allowed) + length > self.most:
            return False
        self.allowed.append(Allowed(length, thread, now))
        return True

    def update(self, inodes: set[bytes], complete: bool, thread: int, now: float) -> None:
        """Forgets what is gone.

        Args:
            inodes: Those that were found.
            complete: Whether every process could be looked at.
            thread: Asks again: what it asked for before has appeared, if it ever will.
            now: Seconds on any clock.
        """
        new = inodes.difference(*(allowed.inodes for allowed in self.allowed))
        waiting = [allowed for allowed in self.allowed if allowed.waiting]
        if new and waiting:
            first = waiting[0]
            for other in waiting[1:]:
                first.join(other)
                self.allowed.remove(other)
            first.inodes |= new
            if len(new) >= len(first.waiting):
                first.waiting.clear()
        for allowed in self.allowed:
            allowed.waiting.discard(thread)
        if complete:
            self.allowed = [allowed for allowed in self.allowed if is_there(allowed, inodes, now)]


def is_there(allowed: Allowed, inodes: set[bytes], now: float) -> bool:
    """Returns whether any of the allowed memory may still exist, given the inodes that there are."""
    return bool(allowed.inodes & inodes) or (bool(allowed.waiting) and now - allowed.since < SECONDS_TO_APPEAR)


def find_inodes() -> tuple[set[bytes], bool]:
    """Returns the inodes of shared anonymous memory in all processes, and whether all of them could be looked at."""
    found: set[bytes] = set()
    complete, own = True, str(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == own:
            continue
        try:
            with open(f"/proc/{name}/maps", "rb") as file:
                found.update(line.split(None, 5)[4] for line in file if line.rstrip().endswith(NAME))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            complete = False
    return found, complete
