"""One scheduler per data directory, and one per database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from callsheet.options.private_files import make_private_directory
from callsheet.scheduler.store.engine import shown_url
from callsheet.scheduler.store.journal_errors import (
    DatabaseLockedError,
    DataDirectoryLockedError,
    DataDirectoryUnusableError,
)
from filelock import FileLock, Timeout
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

LOCK_FILE: Final = "scheduler.lock"
HOLDER_FILE: Final = "scheduler.pid"

# The advisory lock of PostgreSQL is a number: the first eight bytes of the project's name.
ADVISORY_LOCK_KEY: Final = int.from_bytes(b"callshee", "big")


class DataDirectoryLock:
    """Holds the lock of a data directory, which is created if need be, until `release` or the end of the process."""

    def __init__(self, data_dir: Path) -> None:
        """Take the lock.

        Raises:
            DataDirectoryLockedError: Another scheduler holds it.
            DataDirectoryUnusableError: It cannot be made or written.
        """
        self._holder_file = data_dir / HOLDER_FILE
        # Not bound to a thread: the one that closes the journal need not be the one that opened it.
        self._lock = FileLock(data_dir / LOCK_FILE, timeout=0, thread_local=False, mode=0o600)
        try:
            make_private_directory(data_dir)
            self._lock.acquire()
            # In a file of its own, since taking the lock may truncate the lock file.
            self._holder_file.touch(mode=0o600)
            self._holder_file.write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout:
            raise DataDirectoryLockedError(data_dir, holder_of(data_dir)) from None
        except OSError as error:
            self._lock.release()
            raise DataDirectoryUnusableError(data_dir, error) from error

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._lock.is_locked:
            self._holder_file.unlink(missing_ok=True)
            self._lock.release()


def holder_of(data_dir: Path) -> int | None:
    """Return the process that took the lock of a data directory last, if that can be read."""
    try:
        return int((data_dir / HOLDER_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def lock_database(connection: Connection, timeout_s: float) -> None:
    """Take the advisory lock of a PostgreSQL database for as long as `connection` lives; on SQLite there is none.

    Waits, since a server may take a moment to notice that a killed scheduler is gone.

    Raises:
        DatabaseLockedError: Another scheduler still holds it after `timeout_s` seconds.
    """
    if connection.dialect.name != "postgresql":
        return
    try:
        with connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{max(1, round(timeout_s * 1000))}ms'"))
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK_KEY})
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        holder = database_holder(connection)
        raise DatabaseLockedError(shown_url(connection.engine.url), holder) from None


def database_holder(connection: Connection) -> str | None:
    """The name of the connection that holds a PostgreSQL database's lock; None if nobody does, and on SQLite."""
    if connection.dialect.name != "postgresql":
        return None
    query = text(
        "SELECT activity.application_name FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)"
        " WHERE lock.locktype = 'advisory' AND lock.granted"
        " AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND (lock.classid::bigint << 32) + lock.objid::bigint = :key"
    )
    with connection.begin():
        name = connection.scalar(query, {"key": ADVISORY_LOCK_KEY})
    return None if name is None else str(name)
