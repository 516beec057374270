"""Statements compiled once, and executed by the database's driver with tuples.

SQLAlchemy's own executemany handles every parameter of every row in Python. That doubles the time of a large commit,
and the interpreter lock is held meanwhile; its transactions and results are a third of a small one, which a lone action
waits for. Compiled here, the statement is still SQLAlchemy's for either database, and a row costs one
`itemgetter`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from callsheet.scheduler.store.journal_errors import InconsistentRecordError
from callsheet.scheduler.store.row_changes import Key, Row, RowChanges, TableChanges
from callsheet.scheduler.store.schema import KEYS, actions, closed_actions, closed_jobs, scheduler, times_away
from sqlalchemy import (
    ColumnElement,
    Delete,
    Dialect,
    Insert,
    Table,
    Update,
    bindparam,
    delete,
    insert,
    update,
)

Columns = tuple[str, ...]
Cursor = Any
"""A cursor of the driver (PEP 249), in a transaction."""


class Statement:
    """A statement, compiled for rows with certain columns."""

    def __init__(self, dialect: Dialect, statement: Insert | Update | Delete, columns: Columns = ()) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(columns))
        self._sql: Final = str(compiled)
        # In the order of the statement; what else it has, such as a key, comes after them.
        names = (compiled.positiontup or [])[: len(columns)]
        self._values_of: Final[Callable[[Row], tuple[object, ...]]] = (
            itemgetter(*names) if len(names) > 1 else lambda row: tuple(row[name] for name in names)
        )

    def execute(self, cursor: Cursor, parameters: Sequence[tuple[object, ...]]) -> int:
        """Execute it for all of `parameters`, each in the order of the statement; returns how many rows it changed."""
        if not parameters:
            return 0
        if len(parameters) == 1:
            cursor.execute(self._sql, parameters[0])
        else:
            cursor.executemany(self._sql, parameters)
        return int(cursor.rowcount)

    def write(self, cursor: Cursor, rows: Iterable[Row]) -> int:
        """Execute it for each of `rows`, by their columns; returns how many rows it changed."""
        return self.execute(cursor, [self._values_of(row) for row in rows])

    def update(self, cursor: Cursor, rows: Iterable[tuple[Key, Row]]) -> int:
        """Execute it for each of `rows`, by their columns and then their key; returns how many rows it changed."""
        return self.execute(cursor, [self._values_of(row) + key for key, row in rows])


class TableWriter:
    """Writes the changes of one table."""

    def __init__(self, dialect: Dialect, table: Table, key: Columns, *own: ColumnElement[bool]) -> None:
        """Compiles no update yet: each set of columns has its own.

        Args:
            dialect: Of the database.
            table: The table.
            key: Columns of its key.
            own: What else is true of a row that may be updated.
        """
        is_it = [table.c[name] == bindparam(f"key_{name}") for name in key]
        self._dialect: Final = dialect
        self._name: Final = table.name
        self._insert: Final = Statement(dialect, insert(table), tuple(table.columns.keys()))
        self._update: Final = update(table).where(*is_it, *own)
        self._delete: Final = Statement(dialect, delete(table).where(*is_it))
        self._updates: Final[dict[Columns, Statement]] = {}

    def write(self, cursor: Cursor, changes: TableChanges) -> None:
        """Write `changes`.

        Raises:
            InconsistentRecordError: A row that is to change does not exist, or may not change any more.
        """
        self._delete.execute(cursor, list(changes.removed))
        self._insert.write(cursor, changes.new.values())
        by_columns: defaultdict[Columns, list[tuple[Key, Row]]] = defaultdict(list)
        for key, row in changes.updates.items():
            by_columns[tuple(row)].append((key, row))
        for columns, rows in by_columns.items():
            statement = self._updates.get(columns)
            if statement is None:
                statement = self._updates[columns] = Statement(self._dialect, self._update, columns)
            changed = statement.update(cursor, rows)
            if changed != len(rows):
                what = f"rows of {self._name} that are not in the journal or may not change any more"
                raise InconsistentRecordError(f"{len(rows) - changed} of {len(rows)} changes are to {what}")


class ChangeWriter:
    """Writes row changes. An action that has its outcome never changes.

    A job that is closed moves from `jobs` to `closed_jobs`, from where its other rows are deleted later.
    """

    def __init__(self, dialect: Dialect) -> None:
        own = {actions: actions.c.outcome.is_(None)}
        self._tables: Final = {
            table: TableWriter(dialect, table, key, *([own[table]] if table in own else []))
            for table, key in KEYS.items()
        }
        known = closed_jobs.c.closed_at == bindparam("at"), closed_jobs.c.job_id == bindparam("of")
        self._grow: Final = Statement(dialect, update(closed_jobs).where(*known).values(cost=bindparam("grown")))
        forgotten = delete(closed_actions).where(closed_actions.c.number <= bindparam("forgotten"))
        self._forget: Final = Statement(dialect, forgotten)
        self._alive: Final = Statement(dialect, update(scheduler).values(alive_at=bindparam("at")))
        of_no_concern = delete(times_away).where(times_away.c.until <= bindparam("before"))
        self._forget_times: Final = Statement(dialect, of_no_concern)

    def write(self, cursor: Cursor, changes: RowChanges) -> None:
        """Write `changes`.

        Raises:
            InconsistentRecordError: A row that is to change does not exist, or may not change any more.
        """
        if changes.away_before:
            self._forget_times.execute(cursor, [(changes.away_before,)])
        for table, writer in self._tables.items():
            if rows := changes.tables[table]:
                writer.write(cursor, rows)
        grown = [(cost, at, job_id) for (job_id, at), cost in changes.closed_jobs_grown.items()]
        self._grow.execute(cursor, grown)
        if changes.forgotten_up_to:
            self._forget.execute(cursor, [(changes.forgotten_up_to,)])
        if changes.alive_at is not None:
            self._alive.execute(cursor, [(changes.alive_at,)])
