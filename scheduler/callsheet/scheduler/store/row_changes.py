"""What one transaction of the journal writes, row by row, and the numbers that rows go by."""

from __future__ import annotations

from dataclasses import dataclass, field
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


class TableChanges:
    """What one transaction writes in a table: rows are removed, then inserted, then updated.

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

    def __contains__(self, key: Key) -> bool:
        """Whether a row is new, or changed."""
        return key in self.new or key in self.updates

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
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
    """What one transaction writes.

    Attributes:
        jobs: By number; the rows of a job that is closed are removed later.
        drains: By the id of the manager.
        of_jobs: The tables of rows under a job, by its number and their ids in it.
        forgotten_actions: What stays of actions and trajectories that were removed.
        closed_jobs: Rows of the jobs that were closed, by number.
        closed_jobs_grown: What closed jobs cost by now, by their ids and when they were closed.
        forgotten_up_to: Rows of closed jobs' actions numbered up to this are deleted.
        alive_at: When the scheduler was last known to run; None if that is not told.
        times_away: Times without a scheduler.
        away_before: Such times that ended up to then are deleted.
    """

    def __init__(self) -> None:
        self.jobs = TableChanges()
        self.drains = TableChanges()
        self.trajectories = TableChanges()
        self.actions = TableChanges()
        self.rollouts = TableChanges()
        self.buffered = TableChanges()
        self.batches = TableChanges()
        self.of_jobs = (self.trajectories, self.actions, self.rollouts, self.buffered, self.batches)
        self.forgotten_actions: list[Row] = []
        self.closed_actions: list[Row] = []
        self.closed_jobs: dict[int, Row] = {}
        self.closed_jobs_grown: dict[tuple[str, float], str] = {}
        self.forgotten_up_to = 0
        self.alive_at: float | None = None
        self.times_away: list[Row] = []
        self.away_before = 0.0
