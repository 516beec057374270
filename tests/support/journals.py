"""Where a test's journal is, and how to look at it from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from callsheet.scheduler.core.words.records import ActionSubmitted
from callsheet.scheduler.store.engine import SQLITE_FILE, create_journal_engine
from callsheet.scheduler.store.journal import Journal, open_journal
from sqlalchemy import MetaData, select

Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class JournalPlace:
    """A journal's data directory, and its database if that is PostgreSQL."""

    data_dir: Path
    url: str | None

    def open(self, kept_actions: int = 0) -> Journal:
        """Opens the journal; a server may take a moment to let go of who had it before."""
        return open_journal(self.data_dir, self.url, kept_actions=kept_actions)

    def open_impatiently(self) -> Journal:
        """Opens the journal, without patience for a lock that is held."""
        return open_journal(self.data_dir, self.url, lock_timeout_s=0.05)

    @contextmanager
    def begun(self, kept_actions: int = 0) -> Iterator[Journal]:
        """Opens the journal and begins an epoch, as a scheduler does when it starts."""
        with closing(self.open(kept_actions)) as journal:
            journal.begin_epoch()
            yield journal

    @contextmanager
    def outside(self) -> Iterator[sqlite3.Connection | psycopg.Connection]:
        """A connection that is none of the journal's; what it does is committed at the end."""
        if self.url is not None:
            with psycopg.connect(self.url) as connection:
                yield connection
        else:
            with closing(sqlite3.connect(self.data_dir / SQLITE_FILE)) as file, file:
                yield file

    def rows(self) -> Rows:
        """Returns all rows of all tables."""
        engine, found = create_journal_engine(self.data_dir, self.url), MetaData()
        with engine.connect() as connection:
            found.reflect(connection)
            rows = {
                table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
                for table in found.sorted_tables
            }
        engine.dispose()
        return rows

    def count(self, table: str) -> int:
        """The number of rows of a table."""
        with self.outside() as connection:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        return int(row[0])


def submitted(action_id: str, job_id: str = "job", *, spec: bytes = b"spec") -> ActionSubmitted:
    """The record of a submit."""
    return ActionSubmitted(job_id, action_id, "trajectory", b"hash of " + action_id.encode(), spec, 12.5)
