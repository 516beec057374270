"""Pages of the journal, read by indexes beside the scheduler. A page reads a bounded number of rows and bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

from callsheet.scheduler.core.words.model import ActionKind, ActionState, invalid, not_found
from callsheet.scheduler.history.messages import (
    action_message,
    closed_job_message,
    score_in,
    story_in,
    task_of,
    trajectory_message,
)
from callsheet.scheduler.store.schema import actions, closed_jobs, jobs, trajectories
from callsheet.v1 import action_pb2, admin_service_pb2, outcome_pb2
from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, case, exists, func, select, tuple_

MAX_PAGE: Final = 1_000
MAX_NAMED: Final = 256
_PAGE: Final = 100
_NO_ID: Final = 2**63
_AT_ONCE: Final = 16
READ_BYTES: Final = 8 * 1024 * 1024
"""A page of actions is over once it has read so much of outcomes, and of the specs of open actions."""
CONTENT_BYTES: Final = 3 * 1024 * 1024
"""Or, with contents, once it has so much of specs and outcomes. A single action that has more goes without."""
# A reward's score is told for outcomes up to this size.
_SCORED_BYTES: Final = 256 * 1024
SCORES_BYTES: Final = 64 * 1024 * 1024
"""A page of trajectories reads so much of outcomes for their scores, and `READ_BYTES` of specs for their tasks."""


T = TypeVar("T")


class _Job(NamedTuple):
    number: int
    closed: bool


class HistoryReader:
    """Reads pages of history. For any thread; a call may take tens of milliseconds."""

    def __init__(self, engine: Engine) -> None:
        """Connects to nothing yet.

        Args:
            engine: Of connections that only read.
        """
        self._engine: Final = engine

    def trajectories(
        self, request: admin_service_pb2.ListTrajectoryHistoryRequest
    ) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        """A page of a job's trajectories, as the journal has them.

        Raises:
            RefusedError: NOT_FOUND if there is no such job; INVALID_ARGUMENT naming the field.
        """
        size = _page_size(request.page_size)
        after = _after(request.page_token, int)
        with self._engine.connect() as connection:
            job = _job(connection, request.job_id)
            which = trajectories.c
            rows = select(trajectories).where(which.job_number == job.number)
            if request.trajectory_ids:
                rows = rows.where(which.trajectory_id.in_(_named(request.trajectory_ids)))
            if request.group_id:
                # The second says that the partial index has it.
                rows = rows.where(which.group_id == _storable("group_id", request.group_id), which.group_id != "")
            # A few are sorted. To have them in order, SQLite would read all versions of the job by their index instead.
            few = bool(request.trajectory_ids or request.group_id)
            version = which.policy_version + 0 if few else which.policy_version
            if request.HasField("policy_version"):
                rows = rows.where(version == request.policy_version)
            if after is not None:
                rows = rows.where(tuple_(version, which.id) < after)
            rows = rows.order_by(version.desc(), which.id.desc()).limit(size + 1)
            found = connection.execute(rows).all()
            page = found[:size]
            told = [trajectory_message(row, job_closed=job.closed) for row in page]
            _fill_from_actions(connection, job.number, told)
        last = f"{page[-1].id}.{page[-1].policy_version}" if len(found) > size else ""
        return admin_service_pb2.ListTrajectoryHistoryResponse(
            trajectories=told, next_page_token=last, job_closed=job.closed
        )

    def actions(
        self, request: admin_service_pb2.ListActionHistoryRequest
    ) -> admin_service_pb2.ListActionHistoryResponse:
        """A page of a job's actions, as the journal has them.

        Raises:
            RefusedError: NOT_FOUND if there is no such job; INVALID_ARGUMENT naming the field.
        """
        size = _page_size(request.page_size)
        after = _after(request.page_token, str)
        with self._engine.connect() as connection:
            job = _job(connection, request.job_id)
            which = actions.c
            rows = _short_rows().where(which.job_number == job.number)
            if request.trajectory_ids:
                rows = rows.where(which.trajectory_id.in_(_named(request.trajectory_ids)))
            if after is not None:
                rows = rows.where(tuple_(which.trajectory_id, which.id) > after)
            rows = rows.order_by(which.trajectory_id, which.id).limit(size + 1)
            found = connection.execute(rows).all()
            page = _that_fit(found[:size], contents=request.contents)
            bodies = _bodies(connection, page, contents=request.contents)
        told = []
        for row in page:
            spec, outcome = bodies.get(row.id, (b"", None))
            told.append(action_message(request.job_id, row, spec, outcome))
            if request.contents and row.spec_bytes + row.outcome_bytes <= CONTENT_BYTES:
                _fill_contents(told[-1], spec, outcome)
        last = f"{page[-1].id}.{page[-1].trajectory_id}" if len(found) > len(page) else ""
        return admin_service_pb2.ListActionHistoryResponse(actions=told, next_page_token=last, job_closed=job.closed)

    def complete_story(self, told: admin_service_pb2.ExplainResponse) -> None:
        """Adds what its outcome tells to an action without a story, which went with the scheduler that knew it."""
        its_job = select(jobs.c.number).where(jobs.c.job_id == told.key.job_id).scalar_subquery()
        its_row = actions.c.job_number == its_job, actions.c.action_id == told.key.action_id
        with self._engine.connect() as connection:
            outcome = None if told.story else connection.scalar(select(actions.c.outcome).where(*its_row))
        if outcome is not None:
            told.story.extend(story_in(outcome_pb2.Outcome.FromString(outcome)))

    def closed_jobs(self, request: admin_service_pb2.ListClosedJobsRequest) -> admin_service_pb2.ListClosedJobsResponse:
        """A page of closed jobs.

        Raises:
            RefusedError: INVALID_ARGUMENT naming the field.
        """
        size = _page_size(request.page_size)
        after = _after(request.page_token, float)
        which = closed_jobs.c
        rows = select(closed_jobs, _later().label("reopened"))
        if request.job_id:
            rows = rows.where(which.job_id == _storable("job_id", request.job_id))
        if after is not None:
            rows = rows.where(tuple_(which.closed_at, which.number) < after)
        with self._engine.connect() as connection:
            found = connection.execute(rows.order_by(which.closed_at.desc(), which.number.desc()).limit(size + 1)).all()
        page = found[:size]
        last = f"{page[-1].number}.{page[-1].closed_at}" if len(found) > size else ""
        return admin_service_pb2.ListClosedJobsResponse(jobs=map(closed_job_message, page), next_page_token=last)


def _later() -> ColumnElement[bool]:
    """Whether a job was opened under the id of a closed one after it."""
    closed, later = closed_jobs.c, closed_jobs.alias().c
    is_open = exists().where(jobs.c.job_id == closed.job_id)
    return is_open | exists().where(later.job_id == closed.job_id, later.number > closed.number)


def _job(connection: Connection, job_id: str) -> _Job:
    """The open job of an id, else the one that was closed last."""
    number = connection.scalar(select(jobs.c.number).where(jobs.c.job_id == _storable("job_id", job_id)))
    if number is not None:
        return _Job(number, closed=False)
    number = connection.scalar(select(func.max(closed_jobs.c.number)).where(closed_jobs.c.job_id == job_id))
    if number is None:
        raise not_found("job_id", job_id, "names neither an open job nor a closed one of which the history is kept")
    return _Job(number, closed=True)


def _fill_from_actions(
    connection: Connection, number: int, told: Sequence[admin_service_pb2.TrajectoryHistory]
) -> None:
    """Adds what only the actions of trajectories tell: their task, and scores."""
    which = actions.c
    named = {each.trajectory_id: each for each in told}
    theirs = and_(which.job_number == number, which.trajectory_id.in_(named))
    first = select(func.min(which.id)).where(theirs).group_by(which.trajectory_id)
    spec = case((which.outcome.is_(None), which.spec), else_=b"").label("spec")
    tasks = select(which.trajectory_id, which.summary, spec).where(which.id.in_(first))
    for row in _up_to(READ_BYTES, connection, tasks):
        named[row.trajectory_id].task = task_of(row)
    scores: defaultdict[str, list[float]] = defaultdict(list)
    rewards = select(which.trajectory_id, which.outcome).where(
        theirs,
        which.kind == ActionKind.REWARD,
        which.state == ActionState.SUCCEEDED.value,
        func.length(which.outcome) <= _SCORED_BYTES,
    )
    for trajectory_id, outcome in _up_to(SCORES_BYTES, connection, rewards.order_by(which.trajectory_id, which.id)):
        scores[trajectory_id].append(score_in(outcome))
    for trajectory_id, found in scores.items():
        named[trajectory_id].scores.extend(found)


def _up_to(most: int, connection: Connection, rows: Select[Any]) -> Iterator[Any]:
    """Rows, as they are read, until their last columns have so many bytes together."""
    with connection.execute(rows, execution_options={"yield_per": _AT_ONCE}) as found:
        for row in found:
            most -= len(row[-1])
            if most < 0:
                return
            yield row


def _short_rows() -> Select[Any]:
    which = actions.c
    short = [column for column in actions.columns if column.name not in ("spec", "outcome")]
    return select(
        *short,
        func.length(which.spec).label("spec_bytes"),
        func.coalesce(func.length(which.outcome), 0).label("outcome_bytes"),
    )


def _that_fit(rows: Sequence[Any], *, contents: bool) -> Sequence[Any]:
    """The first rows, of which the bodies are not too large together; at least one."""
    if contents:
        sizes = accumulate(row.spec_bytes + row.outcome_bytes for row in rows)
    else:
        sizes = accumulate(row.outcome_bytes or row.spec_bytes for row in rows)
    most = CONTENT_BYTES if contents else READ_BYTES
    fitting = sum(size <= most for size in sizes)
    return rows[: max(fitting, 1)]


def _bodies(connection: Connection, rows: Sequence[Any], *, contents: bool) -> dict[int, tuple[bytes, bytes | None]]:
    """Specs, of finished actions only with contents, and outcomes."""
    which = actions.c
    spec = which.spec if contents else case((which.outcome.is_(None), which.spec), else_=b"").label("spec")
    found = connection.execute(select(which.id, spec, which.outcome).where(which.id.in_([row.id for row in rows])))
    return {row.id: (row.spec, row.outcome) for row in found}


def _fill_contents(message: admin_service_pb2.ActionHistory, spec: bytes, outcome: bytes | None) -> None:
    if spec:
        message.spec.CopyFrom(action_pb2.ActionSpec.FromString(spec))
    if outcome is not None:
        message.outcome.CopyFrom(outcome_pb2.Outcome.FromString(outcome))


def _page_size(asked: int) -> int:
    if not 0 <= asked <= MAX_PAGE:
        raise invalid("page_size", asked, f"must be between 0 and {MAX_PAGE}")
    return asked or _PAGE


def _named(ids: Sequence[str]) -> Sequence[str]:
    if len(ids) > MAX_NAMED:
        raise invalid("trajectory_ids", f"{len(ids)} ids", f"must be at most {MAX_NAMED}")
    return [_storable("trajectory_ids", each) for each in ids]


def _after(token: str, of: Callable[[str], T]) -> tuple[T, int] | None:
    """Where the page before ended: what rows are ordered by, and the id of its last one; None for the first page."""
    if not token:
        return None
    number, _, rest = _storable("page_token", token).partition(".")
    try:
        by, row_id = of(rest), int(number)
    except ValueError:
        row_id = _NO_ID
    if not 0 < row_id < _NO_ID or (isinstance(by, int | float) and not 0 <= by < _NO_ID):
        raise invalid("page_token", token, "must be the next_page_token of the page before")
    return by, row_id


def _storable(field: str, text: str) -> str:
    if "\0" in text:
        raise invalid(field, text, "must have no NUL")
    return text
