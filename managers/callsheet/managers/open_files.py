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


def limit_open_files(pid: int, usual: int) -> None:
    """Gives a child process, and what it will start, the limit that this process had; it may still raise it itself."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (usual, hard))
