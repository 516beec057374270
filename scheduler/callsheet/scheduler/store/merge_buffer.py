"""Merges records of buffered trajectories and batches into row changes: a part of `merge`."""

from __future__ import annotations

import json

from callsheet.scheduler.core.records import (
    BatchAcknowledged,
    BatchReturned,
    BatchTaken,
    BufferedTrajectoriesRemoved,
    TrajectoryBuffered,
)
from callsheet.scheduler.store.row_changes import Numbering, RowChanges


def keep_buffered(changes: RowChanges, numbering: Numbering, record: TrajectoryBuffered) -> None:
    """A finished trajectory enters the buffer."""
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


def remove_buffered(
    changes: RowChanges, numbering: Numbering, record: BufferedTrajectoriesRemoved | BatchAcknowledged
) -> None:
    """Trajectories leave the buffer."""
    number = numbering.open_jobs.get(record.job_id)
    if number is not None:
        for trajectory_id in record.trajectory_ids:
            if changes.new_buffered.pop((number, trajectory_id), None) is None:
                changes.removed_buffered[number, trajectory_id] = None


def take_batch(changes: RowChanges, numbering: Numbering, record: BatchTaken) -> None:
    """A batch is leased."""
    _put_batch(changes, numbering, record)


def acknowledge_batch(changes: RowChanges, numbering: Numbering, record: BatchAcknowledged) -> None:
    """A batch was trained on, and its trajectories leave the buffer."""
    remove_buffered(changes, numbering, record)
    _put_batch(changes, numbering, record)
    for batch_id in record.forgotten:
        _drop_batch(changes, numbering, record.job_id, batch_id)


def return_batch(changes: RowChanges, numbering: Numbering, record: BatchReturned) -> None:
    """A batch is back in the buffer."""
    _drop_batch(changes, numbering, record.job_id, record.batch_id)


def _put_batch(changes: RowChanges, numbering: Numbering, record: BatchTaken | BatchAcknowledged) -> None:
    """A batch as it was taken or acknowledged, in place of the row that it has."""
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    taken = record if isinstance(record, BatchTaken) else None
    key = (number, record.batch_id)
    changes.removed_batches[key] = None
    changes.new_batches.pop(key, None)
    changes.new_batches[key] = {
        "job_number": number,
        "batch_id": record.batch_id,
        "number": numbering.next_batch,
        "size": record.size,
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
