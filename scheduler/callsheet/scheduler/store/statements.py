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
from typing import Any, Final, cast

from callsheet.scheduler.store.errors import InconsistentRecordError
from callsheet.scheduler.store.merge import Row
from callsheet.scheduler.store.schema import actions, closed_actions, closed_jobs, jobs, trajectories
from sqlalchemy import Dialect, Insert, Table, Update, bindparam, delete, insert, update

Columns = tuple[str, ...]
Cursor = Any
"""A cursor of the driver (PEP 249), in a transaction."""


class RowWriter:
    """Inserts and updates rows of one table; `update` names, in the parameters, the columns of the row's key."""

    def __init__(self, dialect: Dialect, table: Table, statement: Update, what: str) -> None:
        self._dialect: Final = dialect
        self._insert: Final = insert(table)
        self._update: Final = statement
        self._what: Final = what
        self._compiled: Final[dict[tuple[bool, Columns], tuple[str, Callable[[Row], Sequence[object]]]]] = {}

    def insert(self, cursor: Cursor, rows: Iterable[Row]) -> None:
        """Insert `rows`, all with the same columns."""
        self._execute(cursor, self._insert, list(rows))

    def update(self, cursor: Cursor, rows: Iterable[Row]) -> None:
        """Update the rows that exist already.

        Raises:
            InconsistentRecordError: One of them does not exist, or may not change any more.
        """
        by_columns: defaultdict[Columns, list[Row]] = defaultdict(list)
        for row in rows:
            by_columns[tuple(row)].append(row)
        for group in by_columns.values():
            changed = self._execute(cursor, self._update, group)
            if changed != len(group):
                raise InconsistentRecordError(f"{len(group) - changed} of {len(group)} changes are to {self._what}")

    def _execute(self, cursor: Cursor, statement: Insert | Update, rows: list[Row]) -> int:
        if not rows:
            return 0
        key = (statement is self._insert, tuple(rows[0]))
        if key not in self._compiled:
            self._compiled[key] = self._compile(statement, key[1])
        sql, values_of = self._compiled[key]
        if len(rows) == 1:
            cursor.execute(sql, tuple(values_of(rows[0])))
        else:
            cursor.executemany(sql, [tuple(values_of(row)) for row in rows])
        return int(cursor.rowcount)

    def _compile(self, statement: Insert | Update, columns: Columns) -> tuple[str, Callable[[Row], Sequence[object]]]:
        compiled = statement.compile(dialect=self._dialect, column_keys=list(columns))
        order = cast(list[str], compiled.positiontup)
        return str(compiled), itemgetter(*order)


def job_writer(dialect: Dialect) -> RowWriter:
    """Writes `jobs`; an update is keyed by `key_number`."""
    statement = update(jobs).where(jobs.c.number == bindparam("key_number"))
    return RowWriter(dialect, jobs, statement, "a job that is not in the journal")


def trajectory_writer(dialect: Dialect) -> RowWriter:
    """Writes `trajectories`; an update is keyed by `key_job_number` and `key_id`."""
    statement = update(trajectories).where(
        trajectories.c.job_number == bindparam("key_job_number"), trajectories.c.trajectory_id == bindparam("key_id")
    )
    return RowWriter(dialect, trajectories, statement, "a trajectory that is not in the journal")


def action_writer(dialect: Dialect) -> RowWriter:
    """Writes `actions`; an update is keyed by `key_job_number` and `key_id`. One that has its outcome never changes."""
    statement = update(actions).where(
        actions.c.job_number == bindparam("key_job_number"),
        actions.c.action_id == bindparam("key_id"),
        actions.c.outcome.is_(None),
    )
    return RowWriter(dialect, actions, statement, "an action that is not in the journal or has its outcome")


class JobCloser:
    """Moves jobs from `jobs` to `closed_jobs`, from where their other rows are deleted later."""

    def __init__(self, dialect: Dialect) -> None:
        removal = delete(jobs).where(jobs.c.number == bindparam("number"))
        self._statements: Final = (
            str(removal.compile(dialect=dialect)),
            str(insert(closed_jobs).compile(dialect=dialect, column_keys=["number"])),
        )

    def close(self, cursor: Cursor, numbers: Sequence[int]) -> None:
        """Close the jobs of these numbers."""
        for statement in self._statements if numbers else ():
            cursor.executemany(statement, [(number,) for number in numbers])


class ClosedActionKeeper:
    """Writes `closed_actions`, and deletes what is forgotten."""

    def __init__(self, dialect: Dialect) -> None:
        columns = ("number", "closed_at", "job_id", "action_id", "summary")
        added = insert(closed_actions).compile(dialect=dialect, column_keys=list(columns))
        self._values_of: Final = itemgetter(*cast(list[str], added.positiontup))
        self._insert: Final = str(added)
        removal = delete(closed_actions).where(closed_actions.c.number <= bindparam("forgotten"))
        self._delete: Final = str(removal.compile(dialect=dialect))

    def keep(self, cursor: Cursor, rows: Sequence[Row], forgotten: int) -> None:
        """Inserts rows, and deletes those numbered up to `forgotten`."""
        if rows:
            cursor.executemany(self._insert, [self._values_of(row) for row in rows])
        if forgotten:
            cursor.execute(self._delete, (forgotten,))
