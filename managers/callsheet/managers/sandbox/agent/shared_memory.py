"""Anonymous shared mappings, where no group counts their memory: the kernel asks about each one, and this counts.

Such memory lives until no process has any part of its mapping any more, and so long /proc/PID/maps shows its inode.
What was allowed is therefore counted until its inode is nowhere. Which inode belongs to which request is not told:
requests that overlap, and the inodes that are new after them, are let go together.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import sys
import time

from .slim import call

# x86_64's, as the filter is.
SECCOMP = 317
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
INSTRUCTION_BYTES = 8
# Of struct seccomp_notif: its size, and where the id, the thread and the length that it wants are.
REQUEST_BYTES, ID, THREAD, LENGTH = 80, slice(0, 8), slice(8, 12), slice(40, 48)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NAME = b"/dev/zero (deleted)"
# What was allowed becomes a mapping at once; a request that became none within this was withdrawn, or is over already.
SECONDS_TO_APPEAR = 5.0


def memory_of(words: list[str]) -> SharedMemory | None:
    """Returns what counts, given a filter's path and the bytes there may be; None where a group counts, or nobody may.

    The kernel does not ask where another listener is there already: then it refuses the mappings.
    """
    if len(words) < 2:
        return None
    with open(words[0], "rb") as file:
        listener = install(file.read())
    return SharedMemory(listener, int(words[1])) if listener is not None else None


def install(instructions: bytes) -> int | None:
    """Installs a filter for this process and all that it starts; returns what the kernel asks by, if it does."""
    program = array.array("B", instructions)
    address, length = program.buffer_info()
    words = array.array("Q", [length // INSTRUCTION_BYTES, address]).tobytes()
    listener = call("syscall", SECCOMP, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, words)
    if listener >= 0:
        return listener
    if call("syscall", SECCOMP, SECCOMP_SET_MODE_FILTER, 0, words) < 0:
        raise OSError(errno.EPERM, "a filter for shared memory")
    return None


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

    def __init__(self, listener: int, most: int) -> None:
        """Args: listener: From `install`. most: Bytes that there may be."""
        self.listener = listener
        self.most = most
        self.allowed: list[Allowed] = []

    def answer(self) -> None:
        """Answers one request."""
        request = bytearray(REQUEST_BYTES)
        try:
            fcntl.ioctl(self.listener, NOTIF_RECV, request)
        except OSError:
            # Whoever asked is gone.
            return
        length = -(-int.from_bytes(request[LENGTH], sys.byteorder) // PAGE_BYTES) * PAGE_BYTES
        thread = int.from_bytes(request[THREAD], sys.byteorder)
        fits = self.take(length, thread, time.monotonic())
        error, flags = (0, CONTINUE) if fits else (-errno.ENOMEM, 0)
        words = (error & 0xFFFFFFFF).to_bytes(4, sys.byteorder) + flags.to_bytes(4, sys.byteorder)
        try:
            fcntl.ioctl(self.listener, NOTIF_SEND, bytes(request[ID]) + bytes(8) + words)
        except OSError:
            # A signal came first: it asks again, and this request becomes no mapping.
            return

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
    """Whether any of it may still take memory, given the inodes that there are."""
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
