"""A server's log: what it prints, in a file for its owner alone, which a second one of the past bounds."""

from __future__ import annotations

import os
from pathlib import Path

LOG_BYTES = 64 << 20
"""A file that has grown beyond this becomes the old one."""


class BoundedLog:
    """Appends to a file. What cannot be written, as on a full disk, is dropped: the server is to go on."""

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        self.path = path
        self._most = most_bytes
        self._descriptor = -1
        self._size = 0

    def write(self, content: bytes) -> None:
        """Appends."""
        try:
            if self._descriptor < 0 or self._size > self._most:
                self._reopen()
            self._size += os.write(self._descriptor, content)
        except OSError:
            return

    def _reopen(self) -> None:
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > self._most:
            self.path.replace(self.path.with_suffix(".log.old"))
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Closes the file; another write opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
