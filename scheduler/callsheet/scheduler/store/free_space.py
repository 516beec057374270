"""What deleted rows leave behind: a SQLite file gives it back, a PostgreSQL server cleans up often enough.

Free pages of a file are used again before it grows. They go back to the file system where they are much of it, for
instance after a large job was closed. PostgreSQL's autovacuum does the same; migrations tell it to come sooner.
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
# A file that was made without incremental vacuuming is written anew if it has no more bytes than this.
_MOST_REWRITTEN: Final = 1 << 30
_INCREMENTAL: Final = 2

_log = structlog.get_logger(__name__)


class FreeSpace:
    """Looks after the free space of a journal's database. Every call is outside of a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._sqlite = connection.dialect.name == "sqlite"

    def prepare(self, connection: Connection) -> None:
        """Makes sure that free space comes back at all, once the tables are there."""
        if not self._sqlite:
            if str(_scalar(connection, "SHOW autovacuum")) != "on":
                _log.warning("journal_autovacuum_off", effect="the database grows with each change")
            return
        if int(_scalar(connection, "PRAGMA auto_vacuum")) == _INCREMENTAL:
            return
        size = int(_scalar(connection, "PRAGMA page_count")) * int(_scalar(connection, "PRAGMA page_size"))
        if size <= _MOST_REWRITTEN:
            _run(connection, f"PRAGMA auto_vacuum = {_INCREMENTAL}")
            _run(connection, "VACUUM")
        else:
            _log.info("journal_keeps_its_size", bytes=size, effect="free pages are used again and not given back")

    def is_much(self, connection: Connection) -> bool:
        """Whether there is so much that some should be given back."""
        if not self._sqlite or int(_scalar(connection, "PRAGMA auto_vacuum")) != _INCREMENTAL:
            return False
        free = int(_scalar(connection, "PRAGMA freelist_count"))
        return free > max(_KEPT_PAGES, int(_scalar(connection, "PRAGMA page_count")) * _KEPT_PART)

    def give_back(self, connection: Connection) -> None:
        """Gives some of it back."""
        _run(connection, f"PRAGMA incremental_vacuum({_PAGES_PER_STEP})")


def _scalar(connection: Connection, statement: str) -> str | int:
    cursor = _driver(connection).execute(statement)
    value: str | int = cursor.fetchone()[0]
    cursor.close()
    if connection.dialect.name != "sqlite":
        _driver(connection).rollback()
    return value


def _run(connection: Connection, statement: str) -> None:
    # A script, as the driver ends a single statement without rows after its first step: here after one page.
    _driver(connection).executescript(statement)


def _driver(connection: Connection) -> Any:
    driver = connection.connection.driver_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    return driver
