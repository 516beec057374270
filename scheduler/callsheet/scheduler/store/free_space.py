"""Space that deleted rows leave: a SQLite file gives it back, a PostgreSQL server cleans up often enough.

Free pages of a file are used again before the file grows. They go back to the file system once they are a large part of
the file, for instance after a large job was closed. PostgreSQL's autovacuum does the same; the tables ask it to come
sooner. No function may be called inside a transaction.
"""

from __future__ import annotations

from typing import Any, Final

import structlog
from sqlalchemy import Connection

# Free pages that a file may keep: so many, or so large a part of it. They are used again soon.
_KEPT_PAGES: Final = 4_096
_KEPT_PART: Final = 0.25
# Moved in one transaction; commits wait for it.
_PAGES_PER_STEP: Final = 1_000

_log = structlog.get_logger(__name__)


def warn_without_vacuum(connection: Connection) -> None:
    """Warns of a PostgreSQL server that does not clean up."""
    if connection.dialect.name == "postgresql" and _scalar(connection, "SHOW autovacuum") != "on":
        _log.warning("journal_autovacuum_off", effect="the database grows with each change")


def has_much_free(connection: Connection) -> bool:
    """Returns whether a file has so many free pages that some should be given back."""
    if connection.dialect.name != "sqlite":
        return False
    free, pages = int(_scalar(connection, "PRAGMA freelist_count")), int(_scalar(connection, "PRAGMA page_count"))
    return free > max(_KEPT_PAGES, pages * _KEPT_PART)


def give_back(connection: Connection) -> None:
    """Gives some free pages of a file back."""
    # A script, as the driver ends a single statement without rows after its first step: here after one page.
    _driver(connection).executescript(f"PRAGMA incremental_vacuum({_PAGES_PER_STEP})")


def _scalar(connection: Connection, statement: str) -> str | int:
    cursor = _driver(connection).execute(statement)
    value: str | int = cursor.fetchone()[0]
    cursor.close()
    if connection.dialect.name != "sqlite":
        _driver(connection).rollback()
    return value


def _driver(connection: Connection) -> Any:
    driver = connection.connection.driver_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    return driver
