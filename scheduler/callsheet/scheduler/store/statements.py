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
from callsheet.scheduler.store.row_changes import Key, Row, RowChanges
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
        if len(rows) == 1:
            cursor.execute(self._sql, self._values_of(rows[0]))
        else:
            cursor.executemany(self._sql, [self._values_of(row) for row in rows])
        return int(cursor.rowcount)


class RowWriter:
    """Inserts and updates rows of one table."""

    def __init__(self, dialect: Dialect, table: Table, *own: ColumnElement[bool]) -> None:
        """Compiles nothing yet.

        Args:
            dialect: Of the database.
            table: The table.
            own: What is true of the row that an update is for; its columns name the row's key in the parameters.
        """
        self._dialect: Final = dialect
        self._table: Final = table
        self._insert: Final = insert(table)
        self._update: Final = update(table).where(*own)
        self._compiled: Final[dict[tuple[bool, Columns], Statement]] = {}

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
                what = f"rows of {self._table.name} that are not in the journal or may not change any more"
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
        number: ColumnElement[int] = bindparam("key_job_number")
        of_trajectory = (trajectories.c.job_number == number, trajectories.c.trajectory_id == bindparam("key_id"))
        of_action = (actions.c.job_number == number, actions.c.action_id == bindparam("key_id"))
        self._jobs: Final = RowWriter(dialect, jobs, jobs.c.number == bindparam("key_number"))
        self._trajectories: Final = RowWriter(dialect, trajectories, *of_trajectory)
        self._actions: Final = RowWriter(dialect, actions, *of_action, actions.c.outcome.is_(None))
        self._closed_jobs: Final = RowWriter(dialect, closed_jobs)
        self._closed_actions: Final = RowWriter(dialect, closed_actions)
        removed = delete(jobs).where(jobs.c.number == bindparam("number"))
        forgotten = delete(closed_actions).where(closed_actions.c.number <= bindparam("forgotten"))
        self._remove_jobs: Final = Statement(dialect, removed, ())
        self._forget: Final = Statement(dialect, forgotten, ())
        self._remove_actions: Final = Statement(dialect, delete(actions).where(*of_action), ())
        self._remove_trajectories: Final = Statement(dialect, delete(trajectories).where(*of_trajectory), ())
        self._forgotten_actions: Final = RowWriter(dialect, forgotten_actions)
        self._rollouts: Final = RowWriter(dialect, rollouts)
        of_closed = delete(rollouts).where(rollouts.c.job_number == bindparam("number"))
        self._remove_rollouts: Final = Statement(dialect, of_closed, ())
        former = delete(rollouts).where(rollouts.c.service == bindparam("service"))
        self._remove_former: Final = Statement(dialect, former, ())
        changed = update(rollouts).where(rollouts.c.service == bindparam("key_service"))
        self._change_rollout: Final = Statement(dialect, changed, ("reference", "begun"))
        self._buffered: Final = RowWriter(dialect, buffered)
        one_buffered = (buffered.c.job_number == number, buffered.c.trajectory_id == bindparam("key_id"))
        self._remove_buffered: Final = Statement(dialect, delete(buffered).where(*one_buffered), ())
        self._batches: Final = RowWriter(dialect, batches)
        one_batch = (batches.c.job_number == number, batches.c.batch_id == bindparam("key_id"))
        self._remove_batches: Final = Statement(dialect, delete(batches).where(*one_batch), ())
        self._of_closed_jobs: Final = [
            Statement(dialect, delete(table).where(table.c.job_number == bindparam("number")), ())
            for table in (buffered, batches)
        ]
        alive = update(scheduler).values(alive_at=bindparam("alive_at"))
        self._alive: Final = Statement(dialect, alive, ("alive_at",))
        self._times_away: Final = RowWriter(dialect, times_away)
        of_no_concern = delete(times_away).where(times_away.c.until <= bindparam("before"))
        self._forget_times: Final = Statement(dialect, of_no_concern, ())

    def write(self, cursor: Cursor, changes: RowChanges) -> None:
        """Write `changes`.

        Raises:
            InconsistentRecordError: A row that is to change does not exist, or may not change any more.
        """
        if changes.closed_jobs:
            closed: list[Row] = [{"number": number} for number in changes.closed_jobs]
            self._remove_jobs.execute(cursor, closed)
            self._closed_jobs.insert(cursor, closed)
            self._remove_rollouts.execute(cursor, closed)
            for statement in self._of_closed_jobs:
                statement.execute(cursor, closed)
        self._jobs.insert(cursor, changes.new_jobs.values())
        self._jobs.update(cursor, changes.job_updates.values())
        self._trajectories.insert(cursor, changes.new_trajectories.values())
        self._trajectories.update(cursor, changes.trajectory_updates.values())
        self._actions.insert(cursor, changes.new_actions.values())
        self._actions.update(cursor, changes.action_updates.values())
        if changes.removed_actions:
            self._remove_actions.execute(cursor, _keys(changes.removed_actions))
        if changes.removed_trajectories:
            self._remove_trajectories.execute(cursor, _keys(changes.removed_trajectories))
        self._forgotten_actions.insert(cursor, changes.forgotten_actions)
        self._closed_actions.insert(cursor, changes.closed_actions)
        if changes.forgotten_up_to:
            self._forget.execute(cursor, [{"forgotten": changes.forgotten_up_to}])
        replaced: list[Row] = [{"service": name} for name in changes.new_rollouts | changes.removed_rollouts]
        if replaced:
            self._remove_former.execute(cursor, replaced)
            self._rollouts.insert(cursor, changes.new_rollouts.values())
        if changes.rollout_updates:
            self._change_rollout.execute(cursor, list(changes.rollout_updates.values()))
        self._write_buffers(cursor, changes)
        if changes.alive_at is not None:
            self._write_times(cursor, changes)

    def _write_buffers(self, cursor: Cursor, changes: RowChanges) -> None:
        if changes.removed_buffered:
            self._remove_buffered.execute(cursor, _keys(changes.removed_buffered))
        self._buffered.insert(cursor, changes.new_buffered.values())
        if changes.removed_batches:
            self._remove_batches.execute(cursor, _keys(changes.removed_batches))
            self._batches.insert(cursor, changes.new_batches.values())

    def _write_times(self, cursor: Cursor, changes: RowChanges) -> None:
        self._alive.execute(cursor, [{"alive_at": changes.alive_at}])
        if changes.times_away:
            self._forget_times.execute(cursor, [{"before": changes.away_before}])
            self._times_away.insert(cursor, changes.times_away)


def _keys(rows: Iterable[Key]) -> list[Row]:
    return [{"key_job_number": job_number, "key_id": row_id} for job_number, row_id in rows]
