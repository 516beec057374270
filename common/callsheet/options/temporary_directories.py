"""Temporary directories that do not outlive their process for long: the next start clears those of a killed one."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DAY_S = 86_400.0


def _clear_nothing(directory: Path) -> None:
    """There is nothing to end."""


@contextmanager
def temporary_directory(
    prefix: str, parent: Path | None = None, clear: Callable[[Path], object] = _clear_nothing
) -> Iterator[Path]:
    """Makes a directory for the length of a `with` block, and removes those that killed processes left.

    Each one is locked as long as its process lives, however that ends. So one that is not locked is nobody's. Earlier
    releases locked none; one of theirs, which lacks the sticky bit, is nobody's a day after its last change.

    Args:
        prefix: Of its name, and of those that are looked for.
        parent: Where they are; by default where temporary files go.
        clear: Called with one that was left, before it is removed.

    Raises:
        OSError: It cannot be made.
    """
    place = parent or Path(tempfile.gettempdir())
    for left in place.glob(f"{prefix}*"):
        lock = _lock(left)
        if lock is not None and (left.stat().st_mode & stat.S_ISVTX or left.stat().st_mtime < time.time() - _DAY_S):
            clear(left)
            _remove(left, lock)
        elif lock is not None:
            os.close(lock)
    lock = None
    while lock is None:  # Another start may find it before it is locked.
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        lock = _lock(made)
    made.chmod(0o1700)
    try:
        yield made
    finally:
        _remove(made, lock)


def _lock(directory: Path) -> int | None:
    """Returns the locked descriptor of a directory; None where it is none of this user's, held, or gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(BlockingIOError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if directory.exists():
                return descriptor
    os.close(descriptor)
    return None


def _remove(directory: Path, lock: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    os.close(lock)
