"""Netlink sockets: the kernel counts what waits in them for nobody.

Each keeps messages up to the size of its buffer. Programs open them for a moment, to ask for addresses.
"""

from __future__ import annotations

# Of the network namespace that the reader is in.
PROTOCOLS = "/proc/net/protocols"
NAME, SOCKETS = b"NETLINK", 2


def count_sockets() -> int | None:
    """Returns how many there are, wherever their descriptors are; None where that cannot be known."""
    try:
        with open(PROTOCOLS, "rb") as file:
            words = next(line.split() for line in file if line.startswith(NAME))
        return int(words[SOCKETS])
    except (OSError, StopIteration, ValueError, IndexError):
        return None
