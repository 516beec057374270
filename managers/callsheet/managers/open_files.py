"""How many files a process may have open at once: sandboxes and streams take one or two each."""

from __future__ import annotations

import resource
from functools import cache

# Some hard limits are a thousand million, and some libraries make tables of that size.
MOST_OPEN_FILES = 1 << 20


@cache
def raise_open_files() -> int:
    """Lets this process open as many files as it may, once; many systems let a process that does not ask have 1,024.

    Returns:
        How many it could open before: what programs that it starts should get, as some try every number up to there.
    """
    usual, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if usual != resource.RLIM_INFINITY and usual < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return usual


def open_files_of_commands(*, own_user: bool) -> tuple[int, int]:
    """Returns the soft and the hard limit of commands: the soft one is what this process had when it was started.

    Descriptors that are on their way over unix sockets count for each user of the machine, and a process may send more
    while that count is below its own soft limit. So commands that run as this process's user may open half of what it
    may: however many they leave on their way, there is room for those of this process.

    Args:
        own_user: Whether commands run as this process's user.
    """
    usual = raise_open_files()
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not own_user:
        return usual, hard
    largest = MOST_OPEN_FILES if most == resource.RLIM_INFINITY else most
    half = max(1, largest // 2)
    return (half if usual == resource.RLIM_INFINITY else min(usual, half)), half
