"""The rows that one transaction of the journal writes, and the numbers that rows go by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from callsheet.scheduler.store.schema import KEYS
from sqlalchemy import Table

Row: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[int | str, ...]
"""The values of a row's key columns."""


@dataclass(slots=True)
class Numbering:
    """The surrogate keys in use.

    Attributes:
        open_jobs: Numbers of the open jobs.
        newest: The greatest number that was ever given to a row of each table that is still there.
    """

    open_jobs: dict[str, int] = field(default_factory=dict)
    newest: Counter[Table] = field(default_factory=Counter)

    def take(self, table: Table) -> int:
        """Returns the next number for a row of a table."""
        self.newest[table] += 1
        return self.newest[table]


class TableChanges:
    """Changes of one table in one transaction: rows are removed, then inserted, then updated.

    Attributes:
        new: Rows to insert, whole.
        updates: The changed columns of rows that are there.
        removed: Keys of rows to delete.
    """

    __slots__ = ("new", "removed", "updates")

    def __init__(self) -> None:
        self.new: dict[Key, Row] = {}
        self.updates: dict[Key, Row] = {}
        self.removed: dict[Key, None] = {}

    def __bool__(self) -> bool:
        """Returns whether there is anything to write."""
        return bool(self.new or self.updates or self.removed)

    def row(self, key: Key) -> Row:
        """The row to change: one that is new in this transaction, or an update."""
        row = self.new.get(key)
        return self.updates.setdefault(key, {}) if row is None else row

    def remove(self, key: Key) -> None:
        """Deletes a row; one that is new in this transaction is never written."""
        self.updates.pop(key, None)
        if self.new.pop(key, None) is None:
            self.removed[key] = None

    def replace(self, key: Key, row: Row) -> None:
        """Puts a row in the place of the one that has its key, if there is one; it becomes the newest."""
        self.updates.pop(key, None)
        self.new.pop(key, None)
        self.new[key] = row
        self.removed[key] = None

    def drop_job(self, number: int) -> None:
        """A job is closed: whatever was changed under it need not be written."""
        for rows in (self.new, self.updates, self.removed):
            for key in [key for key in rows if key[0] == number]:
                del rows[key]


class RowChanges:
    """Changes of all tables in one transaction.

    Attributes:
        tables: The rows of each table; those of a job that is closed are removed later.
        closed_jobs_grown: What closed jobs cost by now, by their ids and when they were closed.
        forgotten_up_to: Rows of closed jobs' actions numbered up to this are deleted.
        alive_at: When the scheduler was last known to run; None if no record says so.
        away_before: Times without a scheduler that ended up to then are deleted.
    """

    def __init__(self) -> None:
        self.tables: dict[Table, TableChanges] = {table: TableChanges() for table in KEYS}
        self.closed_jobs_grown: dict[tuple[str, float], str] = {}
        self.forgotten_up_to = 0
        self.alive_at: float | None = None
        self.away_before = 0.0

    def drop_job(self, number: int) -> None:
        """Drops whatever was changed under a job, which is closed, so that it is never written."""
        for table, key in KEYS.items():
            if key[0] == "job_number":
                self.tables[table].drop_job(number)
