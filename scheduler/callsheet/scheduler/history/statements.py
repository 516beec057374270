"""Statements that history sends to the journal. Each is made once because making it takes longer than executing it."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.store.schema import actions, closed_jobs, jobs, trajectories
from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, case, exists, func, select, tuple_

SCORED_BYTES: Final = 256 * 1024
"""A reward's score is told for outcomes up to this size."""
_LIFE: Final = ("id", "trajectory_id", "policy_version", "opened_at", "closed_at", "reward")
_TOLD: Final = (*_LIFE, "group_id", "reason", "end", "began", "had_sandbox", "sandbox_id", "manager_id", "cost")
_SHORT: Final = (
    "id",
    "action_id",
    "trajectory_id",
    "kind",
    "state",
    "attempt",
    "manager_id",
    "submitted_at",
    "summary",
)
_IDS: Final[BindParameter[Any]] = bindparam("ids", expanding=True)

OPEN_JOB: Final = select(jobs.c.number).where(jobs.c.job_id == bindparam("job_id"))
CLOSED_JOB: Final = select(func.max(closed_jobs.c.number)).where(closed_jobs.c.job_id == bindparam("job_id"))
TRAJECTORY_OF: Final = select(actions.c.trajectory_id).where(
    actions.c.job_number == func.coalesce(OPEN_JOB.scalar_subquery(), CLOSED_JOB.scalar_subquery()),
    actions.c.action_id == bindparam("action_id"),
)
OUTCOME_OF: Final = select(actions.c.outcome).where(
    actions.c.job_number == OPEN_JOB.scalar_subquery(), actions.c.action_id == bindparam("action_id")
)
TRAJECTORIES: Final = select(*(trajectories.c[name] for name in _TOLD)).where(trajectories.c.id.in_(_IDS))
_of_named: Final = actions.c.job_number == bindparam("job"), actions.c.trajectory_id.in_(_IDS)
# Of finished actions their summary tells the task.
_open_spec: Final = case((actions.c.outcome.is_(None), actions.c.spec), else_=b"").label("spec")
TASKS: Final = select(actions.c.trajectory_id, actions.c.summary, _open_spec).where(
    actions.c.id.in_(select(func.min(actions.c.id)).where(*_of_named).group_by(actions.c.trajectory_id))
)
SCORES: Final = (
    select(actions.c.trajectory_id, actions.c.outcome)
    .where(
        *_of_named,
        actions.c.kind == ActionKind.REWARD,
        actions.c.state == ActionState.SUCCEEDED.value,
        func.length(actions.c.outcome) <= SCORED_BYTES,
    )
    .order_by(actions.c.trajectory_id, actions.c.id)
)
BODIES: Final = {
    contents: select(actions.c.id, actions.c.spec if contents else _open_spec, actions.c.outcome).where(
        actions.c.id.in_(_IDS)
    )
    for contents in (False, True)
}
"""Outcomes and specs; without contents the specs of open actions alone."""


@cache
def trajectory_page(given: frozenset[str], *, brief: bool) -> Select[Any]:
    """Returns trajectories of a job, the newest version first; `given` names the parameters that choose them."""
    which = trajectories.c
    rows = select(*(which[name] for name in (_LIFE if brief else _TOLD))).where(which.job_number == bindparam("job"))
    if "ids" in given:
        rows = rows.where(which.trajectory_id.in_(_IDS))
    if "group_id" in given:
        # The second says that the partial index has it.
        rows = rows.where(which.group_id == bindparam("group_id"), which.group_id != "")
    # A few are sorted. To have them in order, SQLite would read all versions of the job by their index instead.
    version = which.policy_version + 0 if {"ids", "group_id"} & given else which.policy_version
    if "version" in given:
        rows = rows.where(version == bindparam("version"))
    if "after" in given:
        rows = rows.where(tuple_(version, which.id) < _place(which.policy_version))
    return rows.order_by(version.desc(), which.id.desc()).limit(bindparam("most"))


@cache
def action_page(given: frozenset[str]) -> Select[Any]:
    """Returns actions of a job, those of a trajectory together; `given` as for trajectories."""
    which = actions.c
    rows = select(
        *(which[name] for name in _SHORT),
        func.length(which.spec).label("spec_bytes"),
        func.coalesce(func.length(which.outcome), 0).label("outcome_bytes"),
    ).where(which.job_number == bindparam("job"))
    if "ids" in given:
        rows = rows.where(which.trajectory_id.in_(_IDS))
    if "after" in given:
        rows = rows.where(tuple_(which.trajectory_id, which.id) > _place(which.trajectory_id))
    return rows.order_by(which.trajectory_id, which.id).limit(bindparam("most"))


@cache
def closed_job_page(given: frozenset[str]) -> Select[Any]:
    """Returns closed jobs, the newest close first, and whether each was opened again; `given` as for trajectories."""
    which, later = closed_jobs.c, closed_jobs.alias().c
    is_open = exists().where(jobs.c.job_id == which.job_id)
    reopened = is_open | exists().where(later.job_id == which.job_id, later.number > which.number)
    rows = select(closed_jobs, reopened.label("reopened"))
    if "job_id" in given:
        rows = rows.where(which.job_id == bindparam("job_id"))
    if "after" in given:
        rows = rows.where(tuple_(which.closed_at, which.number) < _place(which.closed_at))
    return rows.order_by(which.closed_at.desc(), which.number.desc()).limit(bindparam("most"))


def _place(by: ColumnElement[Any]) -> ColumnElement[Any]:
    """Returns the bound place at which the page before ended."""
    return tuple_(bindparam("after", type_=by.type), bindparam("after_id", type_=trajectories.c.id.type))
