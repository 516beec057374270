"""What one transaction of the journal writes, row by row, and the numbers that rows go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[int | str, ...]
"""The values of a row's key columns."""


@dataclass(slots=True)
class Numbering:
    """The surrogate keys in use. Those that are next were never given to a live row."""

    open_jobs: dict[str, int] = field(default_factory=dict)
    next_job: int = 1
    next_trajectory: int = 1
    next_action: int = 1
    next_forgotten: int = 1
    next_batch: int = 1


@dataclass(slots=True)
class TableChanges:
    """What one transaction writes in a table: rows are removed, then inserted, then updated.

    Attributes:
        columns: Names of the columns that are the key.
        new: Rows to insert, whole.
        updates: The changed columns of rows that are there, beside their key; see `key_row`.
        removed: Keys of rows to delete.
    """

    columns: tuple[str, ...]
    new: dict[Key, Row] = field(default_factory=dict)
    updates: dict[Key, Row] = field(default_factory=dict)
    removed: dict[Key, None] = field(default_factory=dict)

    def __contains__(self, key: Key) -> bool:
        """Whether a row is new, or changed."""
        return key in self.new or key in self.updates

    def row(self, key: Key) -> Row:
        """The row to change: one that is new in this transaction, or an update."""
        row = self.new.get(key)
        if row is None:
            row = self.updates.get(key)
            if row is None:
                row = self.updates[key] = key_row(self.columns, key)
        return row

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


@dataclass(slots=True)
class RowChanges:
    """What one transaction writes.

    Attributes:
        forgotten_actions: What stays of actions and trajectories that were removed.
        forgotten_up_to: Rows of closed jobs' actions numbered up to this are deleted.
        alive_at: When the scheduler was last known to run; None if that is not told.
        times_away: Times without a scheduler.
        away_before: Such times that ended up to then are deleted.
    """

    jobs: TableChanges = field(default_factory=partial(TableChanges, ("number",)))
    trajectories: TableChanges = field(default_factory=partial(TableChanges, ("job_number", "trajectory_id")))
    actions: TableChanges = field(default_factory=partial(TableChanges, ("job_number", "action_id")))
    rollouts: TableChanges = field(default_factory=partial(TableChanges, ("job_number", "service")))
    buffered: TableChanges = field(default_factory=partial(TableChanges, ("job_number", "trajectory_id")))
    batches: TableChanges = field(default_factory=partial(TableChanges, ("job_number", "batch_id")))
    forgotten_actions: list[Row] = field(default_factory=list)
    closed_actions: list[Row] = field(default_factory=list)
    forgotten_up_to: int = 0
    alive_at: float | None = None
    times_away: list[Row] = field(default_factory=list)
    away_before: float = 0.0

    @property
    def closed_jobs(self) -> list[int]:
        """Numbers of the jobs that were closed."""
        return [int(number) for (number,) in self.jobs.removed]

    @property
    def of_jobs(self) -> tuple[TableChanges, ...]:
        """The tables of rows under a job."""
        return self.trajectories, self.actions, self.rollouts, self.buffered, self.batches


KEY = "key_"


def key_row(columns: tuple[str, ...], key: Key) -> Row:
    """The parameters that name a row: its key columns, with `KEY` before their names."""
    return {KEY + name: value for name, value in zip(columns, key, strict=True)}
