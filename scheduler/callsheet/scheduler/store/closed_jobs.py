"""Rows of closed jobs: the newest jobs and actions are kept, with their trajectories; the rest is deleted in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from callsheet.scheduler.store.schema import (
    actions,
    batches,
    buffered,
    closed_jobs,
    forgotten_actions,
    rollouts,
    trajectories,
)
from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, select, tuple_

KEPT_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of specs and outcomes of closed jobs that are kept."""
KEPT_JOBS: Final = 1_000
"""Closed jobs that are kept for what they cost, whether anything else of them is or not."""
# Greater than every id.
_NEWEST: Final = 2**63 - 1


class ClosedJobs:
    """Decides which rows of closed jobs are kept, and deletes the others; it decides anew once more jobs are closed.

    All their actions are looked at together, the newest submit first, until there are too many or they are too large.
    Of those that are older nothing stays, nor of trajectories without any that stays. A job stays for its actions, and
    as one of the newest; where no actions are kept, no job is.
    """

    def __init__(self, kept_actions: int, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_actions: Final = kept_actions
        self._kept_bytes: Final = kept_bytes
        self._numbers: Final[set[int]] = set()
        self._new: Final[set[int]] = set()
        self._due: Final[set[int]] = set()
        # The id of the oldest action that is kept, and where the look for it is; 0 while there is no look.
        self._oldest, self._look_at = 0, 0
        self._cut, self._count, self._bytes = 0, 0, 0

    @property
    def has_garbage(self) -> bool:
        """Returns whether there is anything for `purge`."""
        return bool(self._new or self._look_at or self._due)

    def add(self, numbers: Iterable[int]) -> None:
        """Jobs were closed."""
        self._new.update(numbers)

    def purge(self, connection: Connection, limit: int) -> bool:
        """Looks at, or deletes, about `limit` rows; returns whether all rows of a job that are to go have gone."""
        if not self._look_at and not self._due:
            self._numbers.update(self._new)
            self._due.update(self._new)
            self._new.clear()
            self._look_at, self._cut, self._count, self._bytes = _NEWEST, 0, 0, 0
        if self._look_at and self._kept_actions:
            self._look(connection, limit)
            return False
        self._look_at = 0
        number = min(self._due)
        if self._delete(connection, number, limit) == limit:
            return False
        self._due.discard(number)
        if not self._due and not self._new:
            self._forget_jobs(connection)
        return True

    def _forget_jobs(self, connection: Connection) -> None:
        """Deletes what is left of jobs that are too old. All else of them has gone by now."""
        which = closed_jobs.c
        newest = select(which.number).order_by(which.closed_at.desc(), which.number.desc())
        newest = newest.limit(KEPT_JOBS if self._kept_actions else 0)
        has_actions = exists().where(actions.c.job_number == which.number)
        old = delete(closed_jobs).where(which.number.not_in(newest), ~has_actions).returning(which.number)
        self._numbers.difference_update(connection.scalars(old))

    def _look(self, connection: Connection, limit: int) -> None:
        """Looks at some more rows, by falling id. Those of open jobs are among them."""
        size = func.length(actions.c.spec) + func.coalesce(func.length(actions.c.outcome), 0)
        rows = select(actions.c.id, actions.c.job_number, size.label("size")).order_by(actions.c.id.desc()).limit(limit)
        found = connection.execute(rows.where(actions.c.id < self._look_at)).all()
        for row in found:
            if row.job_number not in self._numbers:
                continue
            self._count += 1
            self._bytes += row.size
            if self._cut:
                self._due.add(row.job_number)
            elif self._count > self._kept_actions or self._bytes > self._kept_bytes:
                self._cut = row.id + 1
                self._due.add(row.job_number)
        self._look_at = found[-1].id if len(found) == limit else 0
        # What is older than the last look left has gone, but for that of jobs that were closed since.
        if self._look_at <= self._oldest:
            self._look_at, self._oldest = 0, max(self._oldest, self._cut)

    def _delete(self, connection: Connection, number: int, limit: int) -> int:
        """Deletes up to `limit` rows of a job; returns how many."""
        old = [actions.c.id < self._oldest] if self._kept_actions else []
        kept = exists().where(actions.c.job_number == number, actions.c.trajectory_id == trajectories.c.trajectory_id)
        left = limit - _delete_some(connection, actions, number, limit, *old)
        left -= _delete_some(connection, trajectories, number, left, ~kept) if left else 0
        for table in (forgotten_actions, rollouts, buffered, batches):
            left -= _delete_some(connection, table, number, left) if left else 0
        return limit - left


def _delete_some(connection: Connection, table: Table, number: int, limit: int, *which: ColumnElement[bool]) -> int:
    key = table.primary_key.columns
    some = select(*key).where(table.c.job_number == number, *which).limit(limit)
    return connection.execute(delete(table).where(tuple_(*key).in_(some))).rowcount
