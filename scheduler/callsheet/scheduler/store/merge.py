"""Turns a sequence of records into the fewest row changes: pure, so that any split into batches can be tested.

Changes to one row are merged: an action that was submitted, dispatched and finished in one batch is one INSERT of its
final state. A row is a dict from column name to value; of a row that exists already it has the changed columns only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, cast

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
from callsheet.scheduler.store.journal_errors import InconsistentRecordError
from callsheet.scheduler.store.row_changes import Numbering, Row, RowChanges, TableChanges
from callsheet.scheduler.store.schema import encode_account, encode_json
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
    for record in records:
        _MERGERS[type(record)](changes, numbering, record)
    for table in (changes.jobs, changes.trajectories):
        for rows in (table.new, table.updates):
            for row in rows.values():
                if (account := row.get("cost")) is not None:
                    row["cost"] = encode_account(cast(Account, account))
    return changes


def _open_job(changes: RowChanges, numbering: Numbering, record: JobOpened) -> None:
    if record.job_id in numbering.open_jobs:
        raise InconsistentRecordError(f"job {record.job_id!r} was opened twice")
    number = numbering.next_job
    numbering.next_job += 1
    numbering.open_jobs[record.job_id] = number
    changes.jobs.new[number,] = {
        "number": number,
        "job_id": record.job_id,
        "policy_version": 0,
        "spec": record.spec,
        "expired": False,
        "lease_left": None,
        "begun_epoch": record.begun_epoch,
        "begun_sequence": record.begun_sequence,
        "opened_at": record.opened_at,
        "cost": None,
    }


def _close_job(changes: RowChanges, numbering: Numbering, record: JobClosed) -> None:
    number = numbering.open_jobs.pop(record.job_id, None)
    if number is None:
        return
    if (number,) in changes.jobs.new:
        # Nothing of it is in the journal yet.
        for table in changes.of_jobs:
            table.drop_job(number)
        changes.forgotten_actions = [row for row in changes.forgotten_actions if row["job_number"] != number]
    changes.closed_jobs[number] = {
        "number": number,
        "job_id": record.job_id,
        "opened_at": record.opened_at,
        "closed_at": record.closed_at,
        "reason": record.reason,
        "cost": encode_json((record.cost.held, record.cost.used)),
    }
    changes.jobs.remove((number,))


def _grow_closed_job(changes: RowChanges, numbering: Numbering, record: ClosedJobGrew) -> None:
    changes.closed_jobs_grown[record.job_id, record.closed_at] = encode_json((record.cost.held, record.cost.used))


def _publish_policy_version(changes: RowChanges, numbering: Numbering, record: PolicyVersionPublished) -> None:
    _job_row(changes, numbering, record.job_id)["policy_version"] = record.version


def _change_lease(changes: RowChanges, numbering: Numbering, record: JobLease) -> None:
    _job_row(changes, numbering, record.job_id).update(expired=record.expired, lease_left=record.left)


def _job_row(changes: RowChanges, numbering: Numbering, job_id: str) -> Row:
    number = numbering.open_jobs.get(job_id)
    return {} if number is None else changes.jobs.row((number,))


def _begin_rollout(changes: RowChanges, numbering: Numbering, record: RolloutBegun) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    row: Row = {
        "job_number": number,
        "service": record.service,
        "version": record.version,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "begun": False,
        "plan": record.plan,
        "reference": b"",
    }
    changes.rollouts.replace((number, record.service), row)


def _change_rollout(changes: RowChanges, numbering: Numbering, record: RolloutChanged) -> None:
    row = _row(changes.rollouts, numbering, record.job_id, record.service)
    row.update(reference=record.reference, begun=record.begun)


def _open_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryOpened) -> None:
    number = _number_of_open_job(numbering, record)
    key = (number, record.trajectory_id)
    if key in changes.trajectories:
        raise InconsistentRecordError(f"trajectory {record.trajectory_id!r} of {record.job_id!r} was opened twice")
    changes.trajectories.new[key] = {
        "id": numbering.next_trajectory,
        "job_number": number,
        "trajectory_id": record.trajectory_id,
        "policy_version": record.policy_version,
        "opened_at": record.opened_at,
        "began": False,
        "sandbox_id": "",
        "manager_id": "",
        "held": "{}",
        "held_cores": "[]",
        "had_sandbox": False,
        "died": False,
        "command_timeout": 0.0,
        "group_cancelled": False,
        "end": "",
        "reason": "",
        "closed_at": None,
        "group_id": record.group_id,
        "reward": None,
        "cost": None,
        "spec": record.spec,
    }
    numbering.next_trajectory += 1


def _place_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryPlaced) -> None:
    row = _row(changes.trajectories, numbering, record.job_id, record.trajectory_id)
    row.update(
        sandbox_id=_storable(record.sandbox_id),
        manager_id=record.manager_id,
        # Only what had a place loses it.
        had_sandbox=True,
        died=record.died,
        held=encode_json(record.held),
        held_cores=encode_json(record.held_cores),
    )


def _grow_cost(changes: RowChanges, numbering: Numbering, record: CostGrown) -> None:
    # A row has its account once, as text, when the batch is merged: most batches have many of each.
    _job_row(changes, numbering, record.job_id)["cost"] = record.of_job
    for trajectory_id, account in record.of_trajectories.items():
        _row(changes.trajectories, numbering, record.job_id, trajectory_id)["cost"] = account


def _close_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryClosed) -> None:
    row = _row(changes.trajectories, numbering, record.job_id, record.trajectory_id)
    row.update(end=record.end, reason=_storable(record.reason), closed_at=record.closed_at, reward=record.reward)


def _change_command_timeout(changes: RowChanges, numbering: Numbering, record: TrajectoryCommandTimeout) -> None:
    row = _row(changes.trajectories, numbering, record.job_id, record.trajectory_id)
    row["command_timeout"] = record.command_timeout


def _begin_trajectory(changes: RowChanges, numbering: Numbering, record: TrajectoryBegan) -> None:
    row = _row(changes.trajectories, numbering, record.job_id, record.trajectory_id)
    row.update(policy_version=record.policy_version, began=True)


def _cancel_group(changes: RowChanges, numbering: Numbering, record: GroupCancelled) -> None:
    _row(changes.trajectories, numbering, record.job_id, record.trajectory_id)["group_cancelled"] = True


def _submit_action(changes: RowChanges, numbering: Numbering, record: ActionSubmitted) -> None:
    number = _number_of_open_job(numbering, record)
    key = (number, record.action_id)
    if key in changes.actions:
        raise InconsistentRecordError(f"action {record.action_id!r} of {record.job_id!r} was submitted twice")
    changes.actions.new[key] = {
        "id": numbering.next_action,
        "job_number": number,
        "action_id": record.action_id,
        "trajectory_id": record.trajectory_id,
        "kind": record.kind,
        "state": QUEUED,
        "attempt": 0,
        "epoch": 0,
        "sequence": 0,
        "manager_id": "",
        "incarnation": "",
        "submitted_at": record.submitted_at,
        "finished_at": None,
        "body_hash": record.body_hash,
        "copies_sandbox": record.copies_sandbox,
        "cancel_reason": "",
        "summary": None,
        "spec": record.spec,
        "outcome": None,
    }
    numbering.next_action += 1


def _dispatch_action(changes: RowChanges, numbering: Numbering, record: ActionDispatched) -> None:
    _unfinished_row(changes, numbering, record).update(
        state=DISPATCHED,
        attempt=record.attempt,
        epoch=record.epoch,
        sequence=record.sequence,
        manager_id=record.manager_id,
        incarnation=record.incarnation,
    )


def _cancel_action(changes: RowChanges, numbering: Numbering, record: ActionCancelRequested) -> None:
    _unfinished_row(changes, numbering, record)["cancel_reason"] = _storable(record.reason)


def _requeue_action(changes: RowChanges, numbering: Numbering, record: ActionRequeued) -> None:
    row = _unfinished_row(changes, numbering, record)
    row.update(state=QUEUED, attempt=record.attempt, epoch=0, sequence=0, manager_id="", incarnation="")


def _finish_action(changes: RowChanges, numbering: Numbering, record: ActionFinished) -> None:
    row = _unfinished_row(changes, numbering, record)
    row.update(
        state=record.state,
        outcome=record.outcome,
        finished_at=record.finished_at,
        summary=encode_summary(record.summary, with_story=False) if record.summary is not None else None,
    )
    if not record.keeps_spec:
        row["spec"] = b""


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
        changes.actions.remove((number, action_id))
    for trajectory_id in record.trajectory_ids:
        changes.trajectories.remove((number, trajectory_id))
    row: Row = {"number": numbering.next_forgotten, "job_number": number, "entries": record.entries}
    changes.forgotten_actions.append(row)
    numbering.next_forgotten += 1


def _keep_buffered(changes: RowChanges, numbering: Numbering, record: TrajectoryBuffered) -> None:
    number = numbering.open_jobs.get(record.job_id)
    if number is not None:
        changes.buffered.new[number, record.trajectory_id] = {
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
            changes.buffered.remove((number, trajectory_id))


def _acknowledge_batch(changes: RowChanges, numbering: Numbering, record: BatchAcknowledged) -> None:
    _remove_buffered(changes, numbering, record)
    _put_batch(changes, numbering, record)


def _put_batch(
    changes: RowChanges, numbering: Numbering, record: BatchTaken | BatchAcknowledged | BatchReturned
) -> None:
    """A batch as it was taken, acknowledged or given back, in place of its row; others are forgotten with it."""
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    taken = record if isinstance(record, BatchTaken) else None
    row: Row = {
        "job_number": number,
        "batch_id": record.batch_id,
        "number": numbering.next_batch,
        "size": 0 if isinstance(record, BatchReturned) else record.size,
        "lease_s": taken.lease_s if taken is not None else 0.0,
        "policy_version": taken.policy_version if taken is not None else 0,
        "acknowledged": isinstance(record, BatchAcknowledged),
        "trajectory_ids": encode_json(taken.trajectory_ids if taken is not None else ()),
    }
    changes.batches.replace((number, record.batch_id), row)
    numbering.next_batch += 1
    for batch_id in record.forgotten if not isinstance(record, BatchTaken) else ():
        changes.batches.remove((number, batch_id))


def _note_drain(changes: RowChanges, numbering: Numbering, record: ManagerLeaves) -> None:
    key, by = (record.manager_id,), record.leaves_by
    if by is None:
        changes.drains.remove(key)
    else:
        row: Row = {"manager_id": record.manager_id, "incarnation": record.incarnation, "leaves_by": by}
        changes.drains.replace(key, row)


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


def _row(table: TableChanges, numbering: Numbering, job_id: str, row_id: str) -> Row:
    """The row to change, new in this batch or an update; one that nobody writes if its job is closed."""
    number = numbering.open_jobs.get(job_id)
    return {} if number is None else table.row((number, row_id))


def _unfinished_row(
    changes: RowChanges,
    numbering: Numbering,
    record: ActionDispatched | ActionCancelRequested | ActionRequeued | ActionFinished,
) -> Row:
    row = _row(changes.actions, numbering, record.job_id, record.action_id)
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
        CostGrown: _grow_cost,
        ClosedJobGrew: _grow_closed_job,
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
        TrajectoryBuffered: _keep_buffered,
        BufferedTrajectoriesRemoved: _remove_buffered,
        BatchTaken: _put_batch,
        BatchReturned: _put_batch,
        BatchAcknowledged: _acknowledge_batch,
        ManagerLeaves: _note_drain,
        SchedulerAlive: _note_alive,
        SchedulerAway: _note_away,
    },
)
