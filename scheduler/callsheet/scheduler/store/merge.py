"""Turns a sequence of records into the fewest row changes: pure, so that any split into batches can be tested.

Changes to one row are merged: an action that was submitted, dispatched and finished in one batch is one INSERT of its
final state. A row is a dict from column name to value; of a row that exists already it has the changed columns only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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
    TrajectoryBegan,
    TrajectoryBuffered,
    TrajectoryClosed,
    TrajectoryCommandTimeout,
    TrajectoryOpened,
    TrajectoryPlaced,
    WorkForgotten,
)
from callsheet.scheduler.store.errors import InconsistentRecordError
from callsheet.scheduler.store.merge_buffer import (
    acknowledge_batch,
    keep_buffered,
    remove_buffered,
    return_batch,
    take_batch,
)
from callsheet.scheduler.store.row_changes import Key, Numbering, Row, RowChanges
from callsheet.scheduler.store.summaries import encode_summary

QUEUED: Final = "queued"
DISPATCHED: Final = "dispatched"


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
        "began": 0,
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


def _begin_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryBegan) -> None:
    row = _trajectory_row(changes, numbering, record)
    row["policy_version"], row["began"] = record.policy_version, 1


def _cancel_group(changes: RowChanges, numbering: Numbering, record: GroupCancelled) -> None:
    _trajectory_row(changes, numbering, record)["group_cancelled"] = 1


def _trajectory_row(
    changes: RowChanges,
    numbering: Numbering,
    record: TrajectoryBegan | TrajectoryPlaced | TrajectoryClosed | TrajectoryCommandTimeout | GroupCancelled,
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
        TrajectoryBegan: _begin_trajectory,
        TrajectoryBuffered: keep_buffered,
        BufferedTrajectoriesRemoved: remove_buffered,
        BatchTaken: take_batch,
        BatchReturned: return_batch,
        BatchAcknowledged: acknowledge_batch,
        SchedulerAlive: _note_alive,
        SchedulerAway: _note_away,
    },
)
