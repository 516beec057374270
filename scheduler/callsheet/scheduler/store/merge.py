"""Turns a sequence of records into the fewest row changes: pure, so that any split into batches can be tested.

Changes to one row are merged: an action that was submitted, dispatched and finished in one batch is one INSERT of its
final state. A row is a dict from column name to value; of a row that exists already it has the changed columns only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from callsheet.scheduler.core.words.costs import Account
from callsheet.scheduler.core.words.records import (
    ActionCancelRequested,
    ActionDispatched,
    ActionFinished,
    ActionRequeued,
    ActionSubmitted,
    BatchAcknowledged,
    BatchReturned,
    BatchTaken,
    BufferedTrajectoriesRemoved,
    ClosedActionsKept,
    ClosedJobGrew,
    CostGrown,
    GroupCancelled,
    JobClosed,
    JobLease,
    JobOpened,
    ManagerLeaves,
    PolicyVersionPublished,
    Record,
    RolloutBegun,
    RolloutChanged,
    SchedulerAlive,
    SchedulerAway,
    TrajectoryBegan,
    TrajectoryBuffered,
    TrajectoryClosed,
    TrajectoryCommandTimeout,
    TrajectoryOpened,
    TrajectoryPlaced,
    WorkForgotten,
)
from callsheet.scheduler.store.column_types import encode_account
from callsheet.scheduler.store.record_changes import (
    Merger,
    acknowledge_batch,
    changing,
    close_job,
    finish_action,
    forget,
    grow_closed_job,
    grow_cost,
    keep_closed_actions,
    keeping,
    note_alive,
    note_away,
    note_drain,
    opening,
    opening_jobs,
    put_batch,
    remove_buffered,
)
from callsheet.scheduler.store.row_changes import Numbering, RowChanges
from callsheet.scheduler.store.schema import (
    QUEUED,
    actions,
    buffered,
    jobs,
    rollouts,
    trajectories,
)

DISPATCHED: Final = "dispatched"

_MERGERS: Final[dict[type[Record], Merger]] = {
    JobOpened: opening_jobs(),
    JobClosed: close_job,
    JobLease: changing(JobLease, jobs, renamed={"left": "lease_left"}),
    PolicyVersionPublished: changing(PolicyVersionPublished, jobs, renamed={"version": "policy_version"}),
    RolloutBegun: keeping(RolloutBegun, rollouts, "service", replaces=True),
    RolloutChanged: changing(RolloutChanged, rollouts, "service"),
    TrajectoryOpened: opening(TrajectoryOpened, trajectories, "trajectory_id"),
    # Only what had a place loses it.
    TrajectoryPlaced: changing(TrajectoryPlaced, trajectories, "trajectory_id", had_sandbox=True),
    CostGrown: grow_cost,
    ClosedJobGrew: grow_closed_job,
    TrajectoryClosed: changing(TrajectoryClosed, trajectories, "trajectory_id"),
    TrajectoryCommandTimeout: changing(TrajectoryCommandTimeout, trajectories, "trajectory_id"),
    TrajectoryBegan: changing(TrajectoryBegan, trajectories, "trajectory_id", began=True),
    GroupCancelled: changing(GroupCancelled, trajectories, "trajectory_id", group_cancelled=True),
    ActionSubmitted: opening(ActionSubmitted, actions, "action_id"),
    ActionDispatched: changing(ActionDispatched, actions, "action_id", state=DISPATCHED),
    ActionCancelRequested: changing(ActionCancelRequested, actions, "action_id", {"reason": "cancel_reason"}),
    ActionRequeued: changing(
        ActionRequeued, actions, "action_id", state=QUEUED, epoch=0, sequence=0, manager_id="", incarnation=""
    ),
    ActionFinished: finish_action,
    WorkForgotten: forget,
    ClosedActionsKept: keep_closed_actions,
    TrajectoryBuffered: keeping(TrajectoryBuffered, buffered, "trajectory_id"),
    BufferedTrajectoriesRemoved: remove_buffered,
    BatchTaken: put_batch,
    BatchReturned: put_batch,
    BatchAcknowledged: acknowledge_batch,
    ManagerLeaves: note_drain,
    SchedulerAlive: note_alive,
    SchedulerAway: note_away,
}
"""For each record the table whose rows it makes or changes, and the columns of other names than its fields."""


def merge(records: Iterable[Record], numbering: Numbering) -> RowChanges:
    """Merge `records`, in their order, into row changes; advances `numbering`.

    A job that is closed takes all with it, and later changes to what was under it mean nothing: they are dropped.

    Raises:
        InconsistentRecordError: A job is opened twice, something is opened in a job that is not open, or an action that
            got its outcome in this batch is changed again.
    """
    changes = RowChanges()
    for record in records:
        _MERGERS[type(record)](changes, numbering, record)
    for table in (jobs, trajectories):
        for rows in (changes.tables[table].new, changes.tables[table].updates):
            for row in rows.values():
                if (account := row.get("cost")) is not None:
                    row["cost"] = encode_account(cast(Account, account))
    return changes
