"""What one transaction of the journal writes, row by row, and the numbers that rows go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[int, str]
"""A job's number and the id of a trajectory or action in it."""


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
class RowChanges:
    """What one transaction writes. Updates carry their row's key beside the changed columns.

    Attributes:
        removed_actions: Keys of actions whose rows are deleted.
        removed_trajectories: Likewise of trajectories.
        forgotten_actions: What stays of both.
        forgotten_up_to: Rows of closed jobs' actions numbered up to this are deleted.
        new_rollouts: Rows of weights that were published, by service; each takes the place of the service's former row.
        removed_rollouts: Services of which what was published is deleted.
        rollout_updates: Changes of rows of published weights that are there.
        new_buffered: Finished trajectories that enter the buffer of their job.
        removed_buffered: Keys of those that leave it.
        new_batches: Batches as they are now; each takes the place of the row of its key.
        removed_batches: Keys of batches that are deleted.
        alive_at: When the scheduler was last known to run; None if that is not told.
        times_away: Times without a scheduler.
        away_before: Such times that ended up to then are deleted.
    """

    closed_jobs: list[int] = field(default_factory=list)
    new_jobs: dict[int, Row] = field(default_factory=dict)
    job_updates: dict[int, Row] = field(default_factory=dict)
    new_trajectories: dict[Key, Row] = field(default_factory=dict)
    trajectory_updates: dict[Key, Row] = field(default_factory=dict)
    new_actions: dict[Key, Row] = field(default_factory=dict)
    action_updates: dict[Key, Row] = field(default_factory=dict)
    removed_actions: dict[Key, None] = field(default_factory=dict)
    removed_trajectories: dict[Key, None] = field(default_factory=dict)
    forgotten_actions: list[Row] = field(default_factory=list)
    closed_actions: list[Row] = field(default_factory=list)
    forgotten_up_to: int = 0
    new_rollouts: dict[str, Row] = field(default_factory=dict)
    removed_rollouts: dict[str, None] = field(default_factory=dict)
    rollout_updates: dict[str, Row] = field(default_factory=dict)
    new_buffered: dict[Key, Row] = field(default_factory=dict)
    removed_buffered: dict[Key, None] = field(default_factory=dict)
    new_batches: dict[Key, Row] = field(default_factory=dict)
    removed_batches: dict[Key, None] = field(default_factory=dict)
    alive_at: float | None = None
    times_away: list[Row] = field(default_factory=list)
    away_before: float = 0.0

    def even_out(self) -> None:
        """Gives all new actions the same columns: a cancel adds one, and is rare."""
        for row in self.new_actions.values():
            row.setdefault("cancel_reason", "")
