"""System calls that the kernel asks about, as no limit counts what they take: netlink sockets, filters of system calls
and shared memory.

The kernel does not ask where another listener is there already: then it refuses these calls.
"""

from __future__ import annotations

import errno
import fcntl
import sys
import time

from .bounded import Bounded
from .filters import MOST_FILTERS, Filters
from .netlink import count_sockets
from .shared_memory import SharedMemory
from .slim import call, placed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# x86_64's, as the filter is.
SECCOMP = 317
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
INSTRUCTION_BYTES = 8
SOCKET, MMAP, PRCTL = 41, 9, 157
# Of struct seccomp_notif: its size, and where the id, the thread and the system call are.
REQUEST_BYTES, ID, THREAD, NUMBER = 80, slice(0, 8), slice(8, 12), slice(16, 20)


def listener_of(words: list[str]) -> Listener | None:
    """Returns who answers, given a filter's path, the most netlink sockets, and where it counts them the most bytes.

    None where there is no filter, or the kernel does not ask.
    """
    if len(words) < 2:
        return None
    with open(words[0], "rb") as file:
        descriptor = install(file.read())
    if descriptor is None:
        return None
    memory = SharedMemory(int(words[2])) if len(words) > 2 else None
    return Listener(descriptor, Bounded(int(words[1]), count_sockets), memory)


def install(instructions: bytes) -> int | None:
    """Installs a filter for this process and all that it starts; returns what the kernel asks by, if it does."""
    # Named, so that it stays there until the kernel has read it.
    _program, address = placed(instructions)
    words = b"".join(word.to_bytes(8, sys.byteorder) for word in (len(instructions) // INSTRUCTION_BYTES, address))
    listener = call("syscall", SECCOMP, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, words)
    if listener >= 0:
        return listener
    if call("syscall", SECCOMP, SECCOMP_SET_MODE_FILTER, 0, words) < 0:
        raise OSError(errno.EPERM, "a filter that asks")
    return None


class Listener:
    """Answers the kernel's questions."""

    def __init__(self, descriptor: int, sockets: Bounded, memory: SharedMemory | None) -> None:
        """Args: descriptor: From `install`."""
        self.descriptor = descriptor
        filters = Bounded(MOST_FILTERS, Filters().count)
        self.rules: dict[int, tuple[Callable[[bytearray, int, float], bool], int]] = {
            SOCKET: (sockets.allows, errno.ENOBUFS),
            **dict.fromkeys((SECCOMP, PRCTL), (filters.allows, errno.ENOMEM)),
        }
        if memory is not None:
            self.rules[MMAP] = (memory.allows, errno.ENOMEM)

    def answer(self) -> None:
        """Answers one question."""
        request = bytearray(REQUEST_BYTES)
        try:
            fcntl.ioctl(self.descriptor, NOTIF_RECV, request)
        except OSError:
            # Whoever asked is gone.
            return
        thread, number = (int.from_bytes(request[place], sys.byteorder) for place in (THREAD, NUMBER))
        allows, failure = self.rules[number]
        error, flags = (0, CONTINUE) if allows(request, thread, time.monotonic()) else (-failure, 0)
        words = (error & 0xFFFFFFFF).to_bytes(4, sys.byteorder) + flags.to_bytes(4, sys.byteorder)
        try:
            fcntl.ioctl(self.descriptor, NOTIF_SEND, bytes(request[ID]) + bytes(8) + words)
        except OSError:
            # A signal came first: it asks again, and this request comes to nothing.
            return
