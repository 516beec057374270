"""All that the journal has for a scheduler that starts, read in one transaction."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

from callsheet.scheduler.core.words.records import MAX_FINISHED, ManagerLeaves, Record, TrajectoryBuffered
from callsheet.scheduler.core.words.recovered import (
    Recovered,
    RecoveredAction,
    RecoveredBatch,
    RecoveredJob,
    RecoveredRollout,
    RecoveredTrajectory,
)
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    buffered,
    drains,
    forgotten_actions,
    jobs,
    rollouts,
    scheduler,
    times_away,
    trajectories,
)
from callsheet.scheduler.store.summaries import load_closed, load_finished
from sqlalchemy import ColumnElement, Connection, Table, case, func, select

Loaded = TypeVar("Loaded", bound=Record)

# Fields of recovered rows that are no column of their table.
_DERIVED: Final[dict[str, ColumnElement[Any]]] = {
    "job_id": jobs.c.job_id,
    "left": jobs.c.lease_left.label("left"),
    "outcome_bytes": case(
        (actions.c.outcome.is_not(None), func.length(actions.c.outcome) + func.length(actions.c.spec)), else_=0
    ).label("outcome_bytes"),
}
# What is kept of the specs of finished actions is not for the core.
_OPEN_SPEC: Final = case((actions.c.outcome.is_(None), actions.c.spec), else_=b"").label("spec")


def load_recovered(connection: Connection) -> Recovered:
    """The open jobs, all their trajectories and actions, and what is kept of finished actions."""
    return Recovered(
        _load(connection, RecoveredJob, jobs, "number"),
        _load(connection, RecoveredTrajectory, trajectories, "id"),
        _load(connection, RecoveredAction, actions, "id"),
        load_finished(connection, MAX_FINISHED),
        load_closed(connection),
        _load_forgotten(connection),
        connection.scalar(select(scheduler.c.alive_at)),
        _load_times_away(connection),
        _load(connection, RecoveredRollout, rollouts, "service"),
        _load(connection, TrajectoryBuffered, buffered, "number"),
        _load(connection, RecoveredBatch, batches, "number"),
        _load(connection, ManagerLeaves, drains, "manager_id"),
    )


def _load(connection: Connection, kind: type[Loaded], table: Table, by: str) -> tuple[Loaded, ...]:
    """Returns the rows of open jobs in a table, or all rows of a table without jobs, with the columns of `kind`."""
    derived = {**_DERIVED, "spec": _OPEN_SPEC} if table is actions else _DERIVED
    columns = [derived[field.name] if field.name in derived else table.c[field.name] for field in fields(kind)]
    wanted = select(*columns)
    if "job_number" in table.c:
        wanted = wanted.select_from(table).join(jobs, jobs.c.number == table.c.job_number)
    return tuple(kind(*row) for row in connection.execute(wanted.order_by(table.c[by])))


def _load_forgotten(connection: Connection) -> tuple[tuple[str, bytes], ...]:
    rows = connection.execute(
        select(jobs.c.job_id, forgotten_actions.c.entries).join(jobs, jobs.c.number == forgotten_actions.c.job_number)
    )
    return tuple((row.job_id, row.entries) for row in rows)


def _load_times_away(connection: Connection) -> tuple[tuple[float, float], ...]:
    rows = connection.execute(select(times_away.c.since, times_away.c.until).order_by(times_away.c.epoch))
    return tuple((row.since, row.until) for row in rows)
