"""Statements compiled once, and executed with tuples.

SQLAlchemy's own executemany handles every parameter of every row in Python. That doubles the time of a large commit,
and the interpreter lock is held meanwhile. Compiled here, the statement is still SQLAlchemy's for either database, and
a row costs one `itemgetter`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, cast

from callsheet.scheduler.store.errors import InconsistentRecordError
from callsheet.scheduler.store.merge import Row
from callsheet.scheduler.store.schema import actions, jobs, trajectories
from sqlalchemy import Connection, Dialect, Insert, Table, Update, bindparam, insert, update

Columns = tuple[str, ...]


class RowWriter:
    """Inserts and updates rows of one table; `update` names, in the parameters, the columns of the row's key."""

    def __init__(self, dialect: Dialect, table: Table, statement: Update, what: str) -> None:
        self._dialect: Final = dialect
        self._insert: Final = insert(table)
        self._update: Final = statement
        self._what: Final = what
        self._compiled: Final[dict[tuple[bool, Columns], tuple[str, Callable[[Row], Sequence[object]]]]] = {}

    def insert(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Insert `rows`, all with the same columns."""
        self._execute(connection, self._insert, list(rows))

    def update(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Update the rows that exist already.

        Raises:
            InconsistentRecordError: One of them does not exist, or may not change any more.
        """
        by_columns: defaultdict[Columns, list[Row]] = defaultdict(list)
        for row in rows:
            by_columns[tuple(row)].append(row)
        for group in by_columns.values():
            changed = self._execute(connection, self._update, group)
            if changed != len(group):
                raise InconsistentRecordError(f"{len(group) - changed} of {len(group)} changes are to {self._what}")

    def _execute(self, connection: Connection, statement: Insert | Update, rows: list[Row]) -> int:
        if not rows:
            return 0
        key = (statement is self._insert, tuple(rows[0]))
        if key not in self._compiled:
            self._compiled[key] = self._compile(statement, key[1])
        sql, values_of = self._compiled[key]
        values = [tuple(values_of(row)) for row in rows]
        return connection.exec_driver_sql(sql, values[0] if len(values) == 1 else values).rowcount

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
