"""Functions that turn a record into changes of rows in one transaction.

The fields of most records go to the columns of their names. `changing`, `opening` and `keeping` make functions for
them, once, as straight-line code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Final, TypeAlias

from callsheet.scheduler.core.words.records import (
    ActionFinished,
    BatchAcknowledged,
    BatchReturned,
    BatchTaken,
    BufferedTrajectoriesRemoved,
    ClosedActionsKept,
    ClosedJobGrew,
    CostGrown,
    JobClosed,
    JobOpened,
    ManagerLeaves,
    Record,
    SchedulerAlive,
    SchedulerAway,
    WorkForgotten,
)
from callsheet.scheduler.store.column_types import Json, OthersText, encode_json, storable
from callsheet.scheduler.store.journal_errors import InconsistentRecordError
from callsheet.scheduler.store.row_changes import Numbering, Row, RowChanges
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    buffered,
    closed_actions,
    closed_jobs,
    drains,
    forgotten_actions,
    jobs,
    times_away,
    trajectories,
)
from callsheet.scheduler.store.summaries import encode_summary
from sqlalchemy import Table

Merger: TypeAlias = Callable[[RowChanges, Numbering, Any], None]
_ENCODERS: Final[dict[type[Any], Callable[[Any], str]]] = {Json: encode_json, OthersText: storable}


def _columns(
    kind: type[Record], table: Table, left_out: Iterable[str] = (), renamed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the columns of a table that a record has values for, with the code that makes each of `record`.

    Args:
        kind: Of the record.
        table: The table.
        left_out: Fields that name the row.
        renamed: Columns of other names than their fields.
    """
    code = {}
    for field in (each.name for each in fields(kind) if each.name not in left_out):
        column = (renamed or {}).get(field, field)
        encoder = _ENCODERS.get(type(table.c[column].type))
        code[column] = f"record.{field}" if encoder is None else f"{encoder.__name__}(record.{field})"
    return code


def _new_row(kind: type[Record], table: Table, left_out: Iterable[str] = ("job_id",)) -> Callable[..., Row]:
    """Returns a function that makes the whole row of a record, the number of its job, and a number of its own."""
    blank = {each.name: repr(getattr(each.default, "arg", None)) for each in table.columns}
    return _compiled(blank | {"job_number": "number", "id": "own"} | _columns(kind, table, left_out))


def _compiled(code: Mapping[str, str]) -> Callable[..., Row]:
    """Returns straight-line code: to copy values by the names of their fields takes half as long again."""
    source = ", ".join(f"{column!r}: {value}" for column, value in code.items())
    makes: Callable[..., Row] = eval(
        f"lambda record, number=0, own=0: {{{source}}}", {each.__name__: each for each in _ENCODERS.values()}
    )
    return makes


def _already_finished(record: Any) -> InconsistentRecordError:
    what = f"{type(record).__name__} for action {record.action_id!r} of {record.job_id!r}"
    return InconsistentRecordError(f"{what}, which has its outcome")


def changing(
    kind: type[Record], table: Table, key: str = "", renamed: Mapping[str, str] | None = None, **besides: object
) -> Merger:
    """Returns a merger that changes the row of a job, or that which the field `key` names in it.

    Args:
        kind: Of the record.
        table: The table.
        key: The field.
        renamed: Columns of other names than their fields.
        besides: Columns that get the same value of each record.
    """
    constants = {column: repr(value) for column, value in besides.items()}
    changed = _compiled(_columns(kind, table, ("job_id", key), renamed) | constants)
    place_of = attrgetter(key or "job_id")
    may_be_finished = table is actions

    def change(changes: RowChanges, numbering: Numbering, record: Any) -> None:
        number = numbering.open_jobs.get(record.job_id)
        if number is not None:
            row = changes.tables[table].row((number, place_of(record)) if key else (number,))
            if may_be_finished and row.get("outcome") is not None:
                raise _already_finished(record)
            row.update(changed(record))

    return change


def opening(kind: type[Record], table: Table, key: str) -> Merger:
    """Returns a merger that makes a row with a number of its own, once, in a job that must be open."""
    made, place_of = _new_row(kind, table), attrgetter(key)

    def make(changes: RowChanges, numbering: Numbering, record: Any) -> None:
        number = numbering.open_jobs.get(record.job_id)
        if number is None:
            raise InconsistentRecordError(f"{kind.__name__} in job {record.job_id!r}, which is not open")
        rows, place = changes.tables[table], (number, place_of(record))
        if place in rows.new or place in rows.updates:
            raise InconsistentRecordError(f"{kind.__name__} of {place[1]!r} in {record.job_id!r} comes twice")
        rows.new[place] = made(record, number, numbering.take(table))

    return make


def keeping(kind: type[Record], table: Table, key: str, *, replaces: bool = False) -> Merger:
    """Returns a merger that makes a row in a job if that is open; with `replaces` there may be one already."""
    made, place_of = _new_row(kind, table), attrgetter(key)

    def make(changes: RowChanges, numbering: Numbering, record: Any) -> None:
        number = numbering.open_jobs.get(record.job_id)
        if number is not None:
            rows, place, row = changes.tables[table], (number, place_of(record)), made(record, number)
            if replaces:
                rows.replace(place, row)
            else:
                rows.new[place] = row

    return make


def opening_jobs() -> Merger:
    """Returns a merger that makes the row of a job, once while it is open."""
    made = _new_row(JobOpened, jobs, left_out=())

    def make(changes: RowChanges, numbering: Numbering, record: JobOpened) -> None:
        if record.job_id in numbering.open_jobs:
            raise InconsistentRecordError(f"job {record.job_id!r} was opened twice")
        number = numbering.open_jobs[record.job_id] = numbering.take(jobs)
        row = changes.tables[jobs].new[number,] = made(record)
        row["number"] = number

    return make


def close_job(changes: RowChanges, numbering: Numbering, record: JobClosed) -> None:
    """Moves the row of a job to `closed_jobs`."""
    number = numbering.open_jobs.pop(record.job_id, None)
    if number is None:
        return
    if (number,) in changes.tables[jobs].new:
        # Nothing of it is in the journal yet.
        changes.drop_job(number)
    changes.tables[closed_jobs].new[number,] = {
        "number": number,
        "job_id": record.job_id,
        "opened_at": record.opened_at,
        "closed_at": record.closed_at,
        "reason": record.reason,
        "cost": encode_json((record.cost.held, record.cost.used)),
    }
    changes.tables[jobs].remove((number,))


def grow_closed_job(changes: RowChanges, numbering: Numbering, record: ClosedJobGrew) -> None:
    """Changes what a closed job costs."""
    changes.closed_jobs_grown[record.job_id, record.closed_at] = encode_json((record.cost.held, record.cost.used))


def grow_cost(changes: RowChanges, numbering: Numbering, record: CostGrown) -> None:
    """Changes the accounts of a job and of trajectories."""
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    # A row has its account once, as text, when the batch is merged: most batches have many of each.
    changes.tables[jobs].row((number,))["cost"] = record.of_job
    rows = changes.tables[trajectories]
    for trajectory_id, account in record.of_trajectories.items():
        rows.row((number, trajectory_id))["cost"] = account


def finish_action(changes: RowChanges, numbering: Numbering, record: ActionFinished) -> None:
    """Gives an action its outcome."""
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    row = changes.tables[actions].row((number, record.action_id))
    if row.get("outcome") is not None:
        raise _already_finished(record)
    row.update(
        state=record.state,
        outcome=record.outcome,
        finished_at=record.finished_at,
        summary=encode_summary(record.summary, with_story=False) if record.summary is not None else None,
    )
    if not record.keeps_spec:
        row["spec"] = b""


def keep_closed_actions(changes: RowChanges, numbering: Numbering, record: ClosedActionsKept) -> None:
    """Keeps summaries of closed jobs."""
    for closed in record.kept:
        changes.tables[closed_actions].new[closed.number,] = {
            "number": closed.number,
            "closed_at": closed.closed_at,
            "job_id": closed.summary.job_id,
            "action_id": closed.summary.action_id,
            "summary": encode_summary(closed.summary, with_story=True),
            "reason": storable(closed.reason),
        }
    changes.forgotten_up_to = record.forgotten


def forget(changes: RowChanges, numbering: Numbering, record: WorkForgotten) -> None:
    """Removes rows of finished work, and keeps what stays of it."""
    job_number = numbering.open_jobs.get(record.job_id)
    if job_number is None:
        return
    for action_id in record.action_ids:
        changes.tables[actions].remove((job_number, action_id))
    for trajectory_id in record.trajectory_ids:
        changes.tables[trajectories].remove((job_number, trajectory_id))
    number = numbering.take(forgotten_actions)
    row: Row = {"number": number, "job_number": job_number, "entries": record.entries}
    changes.tables[forgotten_actions].new[job_number, number] = row


def remove_buffered(
    changes: RowChanges, numbering: Numbering, record: BufferedTrajectoriesRemoved | BatchAcknowledged
) -> None:
    """Removes trajectories from the buffer."""
    number = numbering.open_jobs.get(record.job_id)
    if number is not None:
        for trajectory_id in record.trajectory_ids:
            changes.tables[buffered].remove((number, trajectory_id))


def acknowledge_batch(changes: RowChanges, numbering: Numbering, record: BatchAcknowledged) -> None:
    """Notes a batch, and removes its trajectories from the buffer."""
    remove_buffered(changes, numbering, record)
    put_batch(changes, numbering, record)


def put_batch(
    changes: RowChanges, numbering: Numbering, record: BatchTaken | BatchAcknowledged | BatchReturned
) -> None:
    """Puts a batch as it was taken, acknowledged or given back in place of its row, and forgets others."""
    number = numbering.open_jobs.get(record.job_id)
    if number is None:
        return
    taken = record if isinstance(record, BatchTaken) else None
    row: Row = {
        "job_number": number,
        "batch_id": record.batch_id,
        "number": numbering.take(batches),
        "size": 0 if isinstance(record, BatchReturned) else record.size,
        "lease_s": taken.lease_s if taken is not None else 0.0,
        "policy_version": taken.policy_version if taken is not None else 0,
        "acknowledged": isinstance(record, BatchAcknowledged),
        "trajectory_ids": encode_json(taken.trajectory_ids if taken is not None else ()),
    }
    changes.tables[batches].replace((number, record.batch_id), row)
    for batch_id in record.forgotten if not isinstance(record, BatchTaken) else ():
        changes.tables[batches].remove((number, batch_id))


def note_drain(changes: RowChanges, numbering: Numbering, record: ManagerLeaves) -> None:
    """Keeps that a manager is to leave, or forgets it."""
    place = (record.manager_id,)
    if record.leaves_by is None:
        changes.tables[drains].remove(place)
    else:
        changes.tables[drains].replace(place, asdict(record))


def note_alive(changes: RowChanges, numbering: Numbering, record: SchedulerAlive) -> None:
    """Keeps when the scheduler was last known to run."""
    changes.alive_at = record.at


def note_away(changes: RowChanges, numbering: Numbering, record: SchedulerAway) -> None:
    """Keeps a time without a scheduler."""
    row: Row = {"epoch": record.epoch, "since": record.since, "until": record.until}
    changes.tables[times_away].new[record.epoch,] = row
    changes.away_before = record.forgotten
    changes.alive_at = record.until
