"""Statements compiled once, and executed by the database's driver with tuples.

SQLAlchemy's own executemany handles every parameter of every row in Python. That doubles the time of a large commit,
and the interpreter lock is held meanwhile; its transactions and results are a third of a small one, which a lone action
waits for. Compiled here, the statement is still SQLAlchemy's for either database, and a row costs one
`itemgetter`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, cast

from callsheet.scheduler.store.errors import InconsistentRecordError
from callsheet.scheduler.store.row_changes import KEY, Row, RowChanges, TableChanges, key_row
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    buffered,
    closed_actions,
    closed_jobs,
    forgotten_actions,
    jobs,
    rollouts,
    scheduler,
    times_away,
    trajectories,
)
from sqlalchemy import ColumnElement, Delete, Dialect, Insert, Table, Update, bindparam, delete, insert, update

Columns = tuple[str, ...]
Cursor = Any
"""A cursor of the driver (PEP 249), in a transaction."""


class Statement:
    """A statement, compiled for rows with certain columns."""

    def __init__(self, dialect: Dialect, statement: Insert | Update | Delete, columns: Columns) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(columns))
        names = cast(list[str], compiled.positiontup)
        self._sql: Final = str(compiled)
        self._values_of: Final[Callable[[Row], Any]] = (
            itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        )

    def execute(self, cursor: Cursor, rows: Sequence[Row]) -> int:
        """Execute it for each of `rows`; returns how many rows it changed."""
        if not rows:
            return 0
        if len(rows) == 1:
            cursor.execute(self._sql, self._values_of(rows[0]))
        else:
            cursor.executemany(self._sql, [self._values_of(row) for row in rows])
        return int(cursor.rowcount)


class TableWriter:
    """Writes the changes of one table."""

    def __init__(self, dialect: Dialect, table: Table, changes: TableChanges, *own: ColumnElement[bool]) -> None:
        """Compiles nothing yet.

        Args:
            dialect: Of the database.
            table: The table.
            changes: Any of the table's, which tell what its key is.
            own: What else is true of a row that may be updated.
        """
        key = [table.c[name] == bindparam(KEY + name) for name in changes.columns]
        self._dialect: Final = dialect
        self._name: Final = table.name
        self._key: Final = changes.columns
        self._insert: Final = insert(table)
        self._update: Final = update(table).where(*key, *own)
        self._delete: Final = Statement(dialect, delete(table).where(*key), ())
        self._compiled: Final[dict[tuple[bool, Columns], Statement]] = {}

    def write(self, cursor: Cursor, changes: TableChanges) -> None:
        """Write `changes`.

        Raises:
            InconsistentRecordError: A row that is to change does not exist, or may not change any more.
        """
        self._delete.execute(cursor, [key_row(self._key, key) for key in changes.removed])
        self._execute(cursor, self._insert, list(changes.new.values()))
        by_columns: defaultdict[Columns, list[Row]] = defaultdict(list)
        for row in changes.updates.values():
            by_columns[tuple(row)].append(row)
        for group in by_columns.values():
            changed = self._execute(cursor, self._update, group)
            if changed != len(group):
                what = f"rows of {self._name} that are not in the journal or may not change any more"
                raise InconsistentRecordError(f"{len(group) - changed} of {len(group)} changes are to {what}")

    def _execute(self, cursor: Cursor, statement: Insert | Update, rows: list[Row]) -> int:
        if not rows:
            return 0
        key = (statement is self._insert, tuple(rows[0]))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = Statement(self._dialect, statement, key[1])
        return compiled.execute(cursor, rows)


class ChangeWriter:
    """Writes row changes. An action that has its outcome never changes.

    A job that is closed moves from `jobs` to `closed_jobs`, from where its other rows are deleted later.
    """

    def __init__(self, dialect: Dialect) -> None:
        def appended(table: Table) -> Statement:
            return Statement(dialect, insert(table), tuple(table.columns.keys()))

        empty = RowChanges()
        self._jobs: Final = TableWriter(dialect, jobs, empty.jobs)
        tables = (trajectories, actions, rollouts, buffered, batches)
        rules = {actions: (actions.c.outcome.is_(None),)}
        self._of_jobs: Final = [
            TableWriter(dialect, table, changes, *rules.get(table, ()))
            for table, changes in zip(tables, empty.of_jobs, strict=True)
        ]
        self._closed_jobs: Final = appended(closed_jobs)
        self._forgotten_actions: Final = appended(forgotten_actions)
        self._closed_actions: Final = appended(closed_actions)
        self._times_away: Final = appended(times_away)
        forgotten = delete(closed_actions).where(closed_actions.c.number <= bindparam("forgotten"))
        self._forget: Final = Statement(dialect, forgotten, ())
        alive = update(scheduler).values(alive_at=bindparam("alive_at"))
        self._alive: Final = Statement(dialect, alive, ("alive_at",))
        of_no_concern = delete(times_away).where(times_away.c.until <= bindparam("before"))
        self._forget_times: Final = Statement(dialect, of_no_concern, ())

    def write(self, cursor: Cursor, changes: RowChanges) -> None:
        """Write `changes`.

        Raises:
            InconsistentRecordError: A row that is to change does not exist, or may not change any more.
        """
        self._closed_jobs.execute(cursor, [{"number": number} for number in changes.closed_jobs])
        self._jobs.write(cursor, changes.jobs)
        for writer, table in zip(self._of_jobs, changes.of_jobs, strict=True):
            writer.write(cursor, table)
        self._forgotten_actions.execute(cursor, changes.forgotten_actions)
        self._closed_actions.execute(cursor, changes.closed_actions)
        if changes.forgotten_up_to:
            self._forget.execute(cursor, [{"forgotten": changes.forgotten_up_to}])
        if changes.alive_at is not None:
            self._alive.execute(cursor, [{"alive_at": changes.alive_at}])
        if changes.times_away:
            self._forget_times.execute(cursor, [{"before": changes.away_before}])
            self._times_away.execute(cursor, changes.times_away)
