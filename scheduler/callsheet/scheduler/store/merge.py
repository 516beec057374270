"""Turns a sequence of records into the fewest row changes: pure, so that any split into batches can be tested.

Changes to one row are merged: an action that was submitted, dispatched and finished in one batch is one INSERT of its
final state. A row is a dict from column name to value; of a row that exists already it has the changed columns only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from callsheet.scheduler.core.records import (
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
    GroupCancelled,
    JobClosed,
    JobLease,
    JobOpened,
    PolicyVersionPublished,
    Record,
    RolloutBegun,
    RolloutChanged,
    SchedulerAlive,
    SchedulerAway,
    TrajectoryBuffered,
    TrajectoryClosed,
    TrajectoryCommandTimeout,
    TrajectoryOpened,
    TrajectoryPlaced,
    WorkForgotten,
)
from callsheet.scheduler.store.errors import InconsistentRecordError
from callsheet.scheduler.store.summaries import encode_summary

Row: TypeAlias = dict[str, object]
Key: TypeAlias = tuple[int, str]
"""A job's number and the id of a trajectory or action in it."""

QUEUED: Final = "queued"
DISPATCHED: Final = "dispatched"


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


def merge(records: Iterable[Record], numbering: Numbering) -> RowChanges:
    """Merge `records`, in their order, into row changes; advances `numbering`.

    A job that is closed takes all with it, and later changes to what was under it mean nothing: they are dropped.

    Raises:
        InconsistentRecordError: A job is opened twice, something is opened in a job that is not open, or an action that
            got its outcome in this batch is changed again.
    """
    changes = RowChanges()
    cancelled = False
    for record in records:
        kind = type(record)
        cancelled = cancelled or kind is ActionCancelRequested
        _MERGERS[kind](changes, numbering, record)
    if cancelled:
        changes.even_out()
    return changes


def _open_job(changes: RowChanges, numbering: Numbering, record: JobOpened) -> None:
    if record.job_id in numbering.open_jobs:
        raise InconsistentRecordError(f"job {record.job_id!r} was opened twice")
    number = numbering.next_job
    numbering.next_job += 1
    numbering.open_jobs[record.job_id] = number
    changes.new_jobs[number] = {
        "number": number,
        "job_id": record.job_id,
        "policy_version": 0,
        "spec": record.spec,
        "expired": 0,
        "lease_left": None,
        "begun_epoch": record.begun_epoch,
        "begun_sequence": record.begun_sequence,
    }


def _close_job(changes: RowChanges, numbering: Numbering, record: JobClosed) -> None:
    number = numbering.open_jobs.pop(record.job_id, None)
    if number is None:
        return
    # Whatever this batch had for the job need not be written, not even the job if it was opened here.
    for rows in (
        changes.new_trajectories,
        changes.trajectory_updates,
        changes.new_actions,
        changes.action_updates,
        changes.removed_actions,
        changes.removed_trajectories,
        changes.new_buffered,
        changes.removed_buffered,
        changes.new_batches,
        changes.removed_batches,
    ):
        for key in [key for key in rows if key[0] == number]:
            del rows[key]
    changes.forgotten_actions = [row for row in changes.forgotten_actions if row["job_number"] != number]
    for service in [service for service, row in changes.new_rollouts.items() if row["job_number"] == number]:
        del changes.new_rollouts[service]
        changes.removed_rollouts[service] = None
    changes.job_updates.pop(number, None)
    if changes.new_jobs.pop(number, None) is None:
        changes.closed_jobs.append(number)


def _publish_policy_version(changes: RowChanges, numbering: Numbering, record: PolicyVersionPublished) -> None:
    _job_row(changes, numbering, record.job_id)["policy_version"] = record.version


def _begin_rollout(changes: RowChanges, numbering: Numbering, record: RolloutBegun) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    changes.rollout_updates.pop(record.service, None)
    changes.new_rollouts[record.service] = {
        "service": record.service,
        "job_number": number,
        "version": record.version,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "begun": 0,
        "plan": record.plan,
        "reference": b"",
    }


def _change_rollout(changes: RowChanges, numbering: Numbering, record: RolloutChanged) -> None:
    row = changes.new_rollouts.get(record.service)
    if row is None:
        row = changes.rollout_updates.setdefault(record.service, {"key_service": record.service})
    row["reference"], row["begun"] = record.reference, int(record.begun)


def _change_lease(changes: RowChanges, numbering: Numbering, record: JobLease) -> None:
    row = _job_row(changes, numbering, record.job_id)
    row["expired"] = int(record.expired)
    row["lease_left"] = record.left


def _job_row(changes: RowChanges, numbering: Numbering, job_id: str) -> Row:
    """The row to change, new in this batch or an update; one that nobody writes if the job is closed."""
    number = numbering.open_jobs.get(job_id)
    if number is None:
        return {}
    row = changes.new_jobs.get(number)
    return changes.job_updates.setdefault(number, {"key_number": number}) if row is None else row


def _open_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryOpened) -> None:
    number = _number_of_open_job(numbering, record)
    key = (number, record.trajectory_id)
    if key in changes.new_trajectories or key in changes.trajectory_updates:
        raise InconsistentRecordError(f"trajectory {record.trajectory_id!r} of {record.job_id!r} was opened twice")
    changes.new_trajectories[key] = {
        "id": numbering.next_trajectory,
        "job_number": number,
        "trajectory_id": record.trajectory_id,
        "policy_version": record.policy_version,
        "opened_at": record.opened_at,
        "sandbox_id": "",
        "manager_id": "",
        "held": "{}",
        "held_cores": "[]",
        "end": "",
        "spec": record.spec,
        "reason": "",
        "command_timeout": 0.0,
        "group_cancelled": 0,
        "had_sandbox": 0,
        "closed_at": None,
        "died": 0,
    }
    numbering.next_trajectory += 1


def _place_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryPlaced) -> None:
    row = _trajectory_row(changes, numbering, record)
    row["sandbox_id"] = _storable(record.sandbox_id)
    row["manager_id"] = record.manager_id
    # Only what had a place loses it.
    row["had_sandbox"] = 1
    row["died"] = int(record.died)
    row["held"] = json.dumps(record.held, separators=(",", ":"))
    row["held_cores"] = json.dumps(record.held_cores, separators=(",", ":"))


def _close_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryClosed) -> None:
    row = _trajectory_row(changes, numbering, record)
    row["end"] = record.end
    row["reason"] = _storable(record.reason)
    row["closed_at"] = record.closed_at


def _change_command_timeout(changes: RowChanges, numbering: Numbering, record: TrajectoryCommandTimeout) -> None:
    _trajectory_row(changes, numbering, record)["command_timeout"] = record.command_timeout


def _cancel_group(changes: RowChanges, numbering: Numbering, record: GroupCancelled) -> None:
    _trajectory_row(changes, numbering, record)["group_cancelled"] = 1


def _trajectory_row(
    changes: RowChanges,
    numbering: Numbering,
    record: TrajectoryPlaced | TrajectoryClosed | TrajectoryCommandTimeout | GroupCancelled,
) -> Row:
    return _row(changes.new_trajectories, changes.trajectory_updates, numbering, record.job_id, record.trajectory_id)


def _submit_action(changes: RowChanges, numbering: Numbering, record: ActionSubmitted) -> None:
    number = _number_of_open_job(numbering, record)
    key = (number, record.action_id)
    if key in changes.new_actions or key in changes.action_updates:
        raise InconsistentRecordError(f"action {record.action_id!r} of {record.job_id!r} was submitted twice")
    changes.new_actions[key] = {
        "id": numbering.next_action,
        "job_number": number,
        "action_id": record.action_id,
        "trajectory_id": record.trajectory_id,
        "state": QUEUED,
        "attempt": 0,
        "epoch": 0,
        "sequence": 0,
        "manager_id": "",
        "submitted_at": record.submitted_at,
        "finished_at": None,
        "body_hash": record.body_hash,
        "spec": record.spec,
        "outcome": None,
        "summary": None,
        "copies_sandbox": int(record.copies_sandbox),
    }
    numbering.next_action += 1


def _dispatch_action(changes: RowChanges, numbering: Numbering, record: ActionDispatched) -> None:
    row = _unfinished_row(changes, numbering, record)
    row["state"] = DISPATCHED
    row["attempt"] = record.attempt
    row["epoch"] = record.epoch
    row["sequence"] = record.sequence
    row["manager_id"] = record.manager_id


def _cancel_action(changes: RowChanges, numbering: Numbering, record: ActionCancelRequested) -> None:
    _unfinished_row(changes, numbering, record)["cancel_reason"] = _storable(record.reason)


def _requeue_action(changes: RowChanges, numbering: Numbering, record: ActionRequeued) -> None:
    row = _unfinished_row(changes, numbering, record)
    row["state"] = QUEUED
    row["attempt"] = record.attempt
    row["epoch"] = 0
    row["sequence"] = 0
    row["manager_id"] = ""


def _finish_action(changes: RowChanges, numbering: Numbering, record: ActionFinished) -> None:
    row = _unfinished_row(changes, numbering, record)
    row["state"] = record.state
    row["outcome"] = record.outcome
    row["finished_at"] = record.finished_at
    row["spec"] = b""
    row["summary"] = encode_summary(record.summary, with_story=False) if record.summary is not None else None


def _keep_closed_actions(changes: RowChanges, numbering: Numbering, record: ClosedActionsKept) -> None:
    changes.closed_actions += (
        {
            "number": closed.number,
            "closed_at": closed.closed_at,
            "job_id": closed.summary.job_id,
            "action_id": closed.summary.action_id,
            "summary": encode_summary(closed.summary, with_story=True),
            "reason": _storable(closed.reason),
        }
        for closed in record.kept
    )
    changes.forgotten_up_to = record.forgotten


def _forget(changes: RowChanges, numbering: Numbering, record: WorkForgotten) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    for action_id in record.action_ids:
        _remove((number, action_id), changes.new_actions, changes.action_updates, changes.removed_actions)
    for trajectory_id in record.trajectory_ids:
        key = (number, trajectory_id)
        _remove(key, changes.new_trajectories, changes.trajectory_updates, changes.removed_trajectories)
    row: Row = {"number": numbering.next_forgotten, "job_number": number, "entries": record.entries}
    changes.forgotten_actions.append(row)
    numbering.next_forgotten += 1


def _remove(key: Key, new: dict[Key, Row], updates: dict[Key, Row], removed: dict[Key, None]) -> None:
    """Deletes a row; one that is new in this batch is never written."""
    updates.pop(key, None)
    if new.pop(key, None) is None:
        removed[key] = None


def _buffer(changes: RowChanges, numbering: Numbering, record: TrajectoryBuffered) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is not None:
        changes.new_buffered[number, record.trajectory_id] = {
            "job_number": number,
            "trajectory_id": record.trajectory_id,
            "group_id": record.group_id,
            "number": record.number,
            "policy_version": record.policy_version,
            "opened_at": record.opened_at,
            "finished_at": record.finished_at,
            "result": record.result,
        }


def _remove_buffered(
    changes: RowChanges, numbering: Numbering, record: BufferedTrajectoriesRemoved | BatchAcknowledged
) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is not None:
        for trajectory_id in record.trajectory_ids:
            if changes.new_buffered.pop((number, trajectory_id), None) is None:
                changes.removed_buffered[number, trajectory_id] = None


def _take_batch(changes: RowChanges, numbering: Numbering, record: BatchTaken) -> None:
    _put_batch(changes, numbering, record.job_id, record.batch_id, record)


def _acknowledge_batch(changes: RowChanges, numbering: Numbering, record: BatchAcknowledged) -> None:
    _remove_buffered(changes, numbering, record)
    _put_batch(changes, numbering, record.job_id, record.batch_id, None)
    for batch_id in record.forgotten:
        _drop_batch(changes, numbering, record.job_id, batch_id)


def _return_batch(changes: RowChanges, numbering: Numbering, record: BatchReturned) -> None:
    _drop_batch(changes, numbering, record.job_id, record.batch_id)


def _put_batch(changes: RowChanges, numbering: Numbering, job_id: str, batch_id: str, taken: BatchTaken | None) -> None:
    """A batch as it was taken, or, with None, acknowledged."""
    number = numbering.open_jobs.get(job_id)
    if number is None:
        return
    key = (number, batch_id)
    changes.removed_batches[key] = None
    changes.new_batches.pop(key, None)
    changes.new_batches[key] = {
        "job_number": number,
        "batch_id": batch_id,
        "number": numbering.next_batch,
        "size": taken.size if taken is not None else 0,
        "lease_s": taken.lease_s if taken is not None else 0.0,
        "policy_version": taken.policy_version if taken is not None else 0,
        "acknowledged": int(taken is None),
        "trajectory_ids": json.dumps(taken.trajectory_ids if taken is not None else (), separators=(",", ":")),
    }
    numbering.next_batch += 1


def _drop_batch(changes: RowChanges, numbering: Numbering, job_id: str, batch_id: str) -> None:
    number = numbering.open_jobs.get(job_id)
    if number is not None:
        changes.new_batches.pop((number, batch_id), None)
        changes.removed_batches[number, batch_id] = None


def _note_alive(changes: RowChanges, numbering: Numbering, record: SchedulerAlive) -> None:
    changes.alive_at = record.at


def _note_away(changes: RowChanges, numbering: Numbering, record: SchedulerAway) -> None:
    changes.times_away.append({"epoch": record.epoch, "since": record.since, "until": record.until})
    changes.away_before = record.forgotten
    changes.alive_at = record.until


def _number_of_open_job(numbering: Numbering, record: TrajectoryOpened | ActionSubmitted) -> int:
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        raise InconsistentRecordError(f"{type(record).__name__} in job {record.job_id!r}, which is not open")
    return number


def _storable(text: str) -> str:
    """A text as every database takes it. PostgreSQL takes no NUL, and one record must not end the service."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _row(new: Mapping[Key, Row], updates: dict[Key, Row], numbering: Numbering, job_id: str, row_id: str) -> Row:
    """The row to change, new in this batch or an update; one that nobody writes if its job is closed."""
    number = numbering.open_jobs.get(job_id)
    if number is None:
        return {}
    key = (number, row_id)
    row = new.get(key)
    if row is None:
        row = updates.get(key)
        if row is None:
            row = updates[key] = {"key_job_number": number, "key_id": row_id}
    return row


def _unfinished_row(
    changes: RowChanges,
    numbering: Numbering,
    record: ActionDispatched | ActionCancelRequested | ActionRequeued | ActionFinished,
) -> Row:
    row = _row(changes.new_actions, changes.action_updates, numbering, record.job_id, record.action_id)
    if row.get("outcome") is not None:
        raise InconsistentRecordError(
            f"{type(record).__name__} for action {record.action_id!r} of {record.job_id!r}, which has its outcome"
        )
    return row


_Merger: TypeAlias = Callable[[RowChanges, Numbering, Record], None]

# Each function takes its own record type; the table is what makes that safe.
_MERGERS: Final = cast(
    dict[type[Record], _Merger],
    {
        JobOpened: _open_job,
        JobClosed: _close_job,
        JobLease: _change_lease,
        PolicyVersionPublished: _publish_policy_version,
        RolloutBegun: _begin_rollout,
        RolloutChanged: _change_rollout,
        TrajectoryOpened: _open_trajectory,
        TrajectoryPlaced: _place_trajectory,
        TrajectoryClosed: _close_trajectory,
        TrajectoryCommandTimeout: _change_command_timeout,
        GroupCancelled: _cancel_group,
        ActionSubmitted: _submit_action,
        ActionDispatched: _dispatch_action,
        ActionCancelRequested: _cancel_action,
        ActionRequeued: _requeue_action,
        ActionFinished: _finish_action,
        WorkForgotten: _forget,
        ClosedActionsKept: _keep_closed_actions,
        TrajectoryBuffered: _buffer,
        BufferedTrajectoriesRemoved: _remove_buffered,
        BatchTaken: _take_batch,
        BatchReturned: _return_batch,
        BatchAcknowledged: _acknowledge_batch,
        SchedulerAlive: _note_alive,
        SchedulerAway: _note_away,
    },
)
