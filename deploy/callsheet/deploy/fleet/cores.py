"""Cores of one machine, shared out among the nodes of fleets that are there.

Providers count cores and do not say which. A node takes those that no other one has, or else those that the fewest
have. A lock on a file for each of them ends with the process that has it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from callsheet.options.private_files import make_private_directory

_MOST_HOLDERS = 64


def default_directory() -> Path:
    """Where the locks of this user are."""
    return Path(tempfile.gettempdir()) / f"callsheet-cores-{os.getuid()}"


@contextmanager
def held_cores(count: int, usable: Sequence[int], directory: Path | None = None) -> Iterator[list[int]]:
    """Holds cores for the length of a `with` block, in the order in which they were found.

    Args:
        count: So many.
        usable: Those that there are.
        directory: Where the locks are.

    Raises:
        ValueError: There are not as many.
    """
    if not 1 <= count <= len(usable):
        raise ValueError(f"cores: {count} must be between 1 and {len(usable)}, the cores that this machine lets us use")
    directory = directory or default_directory()
    make_private_directory(directory)
    with ExitStack() as locks:
        with _locked(directory / "all", wait=True):
            cores = _take(count, usable, directory, locks)
        yield cores


def _take(count: int, usable: Sequence[int], directory: Path, locks: ExitStack) -> list[int]:
    taken: list[int] = []
    for holder in range(_MOST_HOLDERS):
        for core in usable:
            if core in taken or len(taken) == count:
                continue
            try:
                locks.enter_context(_locked(directory / f"{core}.{holder}", wait=False))
            except BlockingIOError:
                continue
            taken.append(core)
    if len(taken) < count:
        raise ValueError(f"cores: each of {list(usable)} is shared by {_MOST_HOLDERS} nodes already")
    return taken


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
