"""How many bytes of payloads a disk may take, and its errors as those of a payload store."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from callsheet.scheduler.store.errors import PayloadStoreFullError, PayloadsUnusableError

LEFT_FREE_SHARE: Final = 20
"""One part of so many is left free on the disk, where the journal may be, too."""

MOST_LEFT_FREE: Final = 256 * 1024 * 1024

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class MissingFileError(PayloadsUnusableError):
    """A file is not there."""


class DiskRoom:
    """Counts bytes of payloads against a bound and against what the disk has. Its methods may be called anywhere."""

    def __init__(self, directory: Path, max_bytes: int | None) -> None:
        """Starts with nothing.

        Args:
            directory: Where the payloads are.
            max_bytes: Most bytes of all of them; None leaves some of the disk free.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._used = 0

    def count(self, size: int) -> None:
        """Counts bytes that are there already."""
        with self._lock:
            self._used += size

    def take(self, size: int) -> None:
        """Counts bytes that are about to be written.

        Raises:
            PayloadStoreFullError: There is no room for them; they are not counted.
        """
        with self._lock:
            if self._max_bytes is not None and self._used + size > self._max_bytes:
                reason = f"it has {self._used} of its {self._max_bytes} bytes"
                raise PayloadStoreFullError(f"{size} bytes", reason)
            disk = shutil.disk_usage(self._directory)
            left = min(disk.total // LEFT_FREE_SHARE, MOST_LEFT_FREE)
            if disk.free - size < left:
                reason = f"its disk has {disk.free} bytes free, of which {left} must stay free"
                raise PayloadStoreFullError(f"{size} bytes", reason)
            self._used += size

    def give_back(self, size: int) -> None:
        """Counts bytes that are gone."""
        self.count(-size)


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Turns errors of files into those of a payload store.

    Raises:
        PayloadStoreFullError: A disk or a quota is full.
        MissingFileError: A file is not there.
        PayloadsUnusableError: Anything else.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(error) from error
    except OSError as error:
        if error.errno in _FULL:
            raise PayloadStoreFullError("the disk", error.strerror or str(error)) from error
        raise PayloadsUnusableError(error) from error
