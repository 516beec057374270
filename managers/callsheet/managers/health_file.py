"""A file that shows the watcher of a manager's process that the manager is registered and alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import structlog
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HealthFile:
    """Is there while a manager is registered, and was written at its last heartbeat.

    A manager dials and listens nowhere, so that nobody can ask it. What cannot be written is logged and no error: the
    watcher will notice.

    Attributes:
        path: None for none.
    """

    path: Path | None

    def renew(self) -> None:
        """Notes that the manager is well now."""
        if self.path is None:
            return
        try:
            # It may be where others can put a link or a pipe in its place.
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
            os.utime(descriptor)
            os.close(descriptor)
        except OSError as error:
            log.warning("health_file_not_written", path=str(self.path), error=str(error))

    def remove(self) -> None:
        """Notes that it is not registered any more."""
        if self.path is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("health_file_not_removed", path=str(self.path), error=str(error))
