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
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    buffered,
    closed_actions,
    closed_jobs,
    drains,
    forgotten_actions,
    jobs,
    rollouts,
    scheduler,
    times_away,
    trajectories,
)
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
        def inserted(table: Table) -> Statement:
            return Statement(dialect, insert(table), tuple(table.columns.keys()))

        self._jobs: Final = TableWriter(dialect, jobs, ("number",))
        self._drains: Final = TableWriter(dialect, drains, ("manager_id",))
        self._of_jobs: Final = (
            TableWriter(dialect, trajectories, ("job_number", "trajectory_id")),
            TableWriter(dialect, actions, ("job_number", "action_id"), actions.c.outcome.is_(None)),
            TableWriter(dialect, rollouts, ("job_number", "service")),
            TableWriter(dialect, buffered, ("job_number", "trajectory_id")),
            TableWriter(dialect, batches, ("job_number", "batch_id")),
        )
        self._closed_jobs: Final = inserted(closed_jobs)
        known = closed_jobs.c.closed_at == bindparam("at"), closed_jobs.c.job_id == bindparam("of")
        self._grow: Final = Statement(dialect, update(closed_jobs).where(*known).values(cost=bindparam("grown")))
        self._forgotten_actions: Final = inserted(forgotten_actions)
        self._closed_actions: Final = inserted(closed_actions)
        self._times_away: Final = inserted(times_away)
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
        if changes.jobs:
            self._jobs.write(cursor, changes.jobs)
        self._closed_jobs.write(cursor, changes.closed_jobs.values())
        grown = [(cost, at, job_id) for (job_id, at), cost in changes.closed_jobs_grown.items()]
        self._grow.execute(cursor, grown)
        for writer, table in zip(self._of_jobs, changes.of_jobs, strict=True):
            if table:
                writer.write(cursor, table)
        self._drains.write(cursor, changes.drains)
        self._forgotten_actions.write(cursor, changes.forgotten_actions)
        self._closed_actions.write(cursor, changes.closed_actions)
        if changes.forgotten_up_to:
            self._forget.execute(cursor, [(changes.forgotten_up_to,)])
        if changes.alive_at is not None:
            self._alive.execute(cursor, [(changes.alive_at,)])
        if changes.times_away:
            self._forget_times.execute(cursor, [(changes.away_before,)])
            self._times_away.write(cursor, changes.times_away)
