"""Pages of the journal, read by indexes beside the scheduler. A page reads a bounded number of rows and bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from statistics import fmean
from typing import Any, Final, NamedTuple, TypeVar

from callsheet.scheduler.core.words.refusals import invalid, not_found
from callsheet.scheduler.history import statements
from callsheet.scheduler.history.messages import (
    action_message,
    closed_job_message,
    score_in,
    story_in,
    task_of,
    trajectory_message,
)
from callsheet.v1 import action_pb2, admin_service_pb2, outcome_pb2
from sqlalchemy import Connection, Engine, Select

MAX_PAGE: Final = 1_000
MAX_NAMED: Final = 256
_PAGE: Final = 100
_NO_ID: Final = 2**63
_AT_ONCE: Final = 16
READ_BYTES: Final = 8 * 1024 * 1024
"""A page of actions is over once it has read so much of outcomes, and of the specs of open actions."""
CONTENT_BYTES: Final = 3 * 1024 * 1024
"""Or, with contents, once it has so much of specs and outcomes. A single action that has more goes without."""
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
        self, request: admin_service_pb2.ListTrajectoryHistoryRequest, now: float
    ) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        """A page of a job's trajectories, as the journal has them.

        Args:
            request: Which.
            now: Seconds since the epoch. Those that are open have lived until then.

        Raises:
            RefusedError: NOT_FOUND if there is no such job; INVALID_ARGUMENT naming the field.
        """
        size, longest = _size("page_size", request.page_size) or _PAGE, _size("longest", request.longest)
        given = _named(request.trajectory_ids) | _place(request.page_token, int)
        if request.group_id:
            given["group_id"] = _storable("group_id", request.group_id)
        if request.HasField("policy_version"):
            given["version"] = request.policy_version
        rows = statements.trajectory_page(frozenset(given), brief=longest > 0)
        with self._engine.connect() as connection:
            job = _job(connection, request.job_id)
            found = connection.execute(rows, {**given, "job": job.number, "most": size + 1}).all()
            page = found[:size]
            last = f"{page[-1].id}.{page[-1].policy_version}" if len(found) > size else ""
            response = admin_service_pb2.ListTrajectoryHistoryResponse(next_page_token=last, job_closed=job.closed)
            if longest:
                page = sorted(page, key=lambda row: -_lifetime(row, now))
                response.summary.CopyFrom(_summary(page, _last_scores(connection, job.number, page), now))
                whole = connection.execute(statements.TRAJECTORIES, {"ids": [row.id for row in page[:longest]]})
                page = sorted(whole, key=lambda row: -_lifetime(row, now))
            response.trajectories.extend(trajectory_message(row, job_closed=job.closed) for row in page)
            _fill_from_actions(connection, job.number, response.trajectories)
        return response

    def actions(
        self, request: admin_service_pb2.ListActionHistoryRequest
    ) -> admin_service_pb2.ListActionHistoryResponse:
        """A page of a job's actions, as the journal has them.

        Raises:
            RefusedError: NOT_FOUND if there is no such job; INVALID_ARGUMENT naming the field.
        """
        size, contents = _size("page_size", request.page_size) or _PAGE, request.contents and not request.brief
        given = _named(request.trajectory_ids) | _place(request.page_token, str)
        with self._engine.connect() as connection:
            job = _job(connection, request.job_id)
            rows = statements.action_page(frozenset(given))
            found = connection.execute(rows, {**given, "job": job.number, "most": size + 1}).all()
            page, bodies = found[:size], {}
            if not request.brief:
                page = _that_fit(page, contents=contents)
                bodies = _bodies(connection, page, contents=contents)
        told = []
        for row in page:
            spec, outcome = bodies.get(row.id, (b"", None))
            told.append(action_message(request.job_id, row, spec, outcome))
            if contents and row.spec_bytes + row.outcome_bytes <= CONTENT_BYTES:
                _fill_contents(told[-1], spec, outcome)
        last = f"{page[-1].id}.{page[-1].trajectory_id}" if len(found) > len(page) else ""
        return admin_service_pb2.ListActionHistoryResponse(actions=told, next_page_token=last, job_closed=job.closed)

    def complete_ended(self, told: admin_service_pb2.ExplainResponse) -> None:
        """Adds the trajectory of an action that has ended, and a story where that went with an earlier scheduler."""
        asked = {"job_id": told.key.job_id, "action_id": told.key.action_id}
        with self._engine.connect() as connection:
            told.trajectory_id = connection.scalar(statements.TRAJECTORY_OF, asked) or ""
            outcome = None if told.story else connection.scalar(statements.OUTCOME_OF, asked)
        if outcome is not None:
            told.story.extend(story_in(outcome_pb2.Outcome.FromString(outcome)))

    def closed_jobs(self, request: admin_service_pb2.ListClosedJobsRequest) -> admin_service_pb2.ListClosedJobsResponse:
        """A page of closed jobs.

        Raises:
            RefusedError: INVALID_ARGUMENT naming the field.
        """
        size, given = _size("page_size", request.page_size) or _PAGE, _place(request.page_token, float)
        if request.job_id:
            given["job_id"] = _storable("job_id", request.job_id)
        with self._engine.connect() as connection:
            rows = statements.closed_job_page(frozenset(given))
            found = connection.execute(rows, {**given, "most": size + 1}).all()
        page = found[:size]
        last = f"{page[-1].number}.{page[-1].closed_at}" if len(found) > size else ""
        return admin_service_pb2.ListClosedJobsResponse(jobs=map(closed_job_message, page), next_page_token=last)


def _job(connection: Connection, job_id: str) -> _Job:
    """The open job of an id, else the one that was closed last."""
    told = {"job_id": _storable("job_id", job_id)}
    number = connection.scalar(statements.OPEN_JOB, told)
    if number is not None:
        return _Job(number, closed=False)
    number = connection.scalar(statements.CLOSED_JOB, told)
    if number is None:
        raise not_found("job_id", job_id, "names neither an open job nor a closed one of which the history is kept")
    return _Job(number, closed=True)


def _lifetime(row: Any, now: float) -> float:
    return (row.closed_at or now) - row.opened_at  # type: ignore[no-any-return]


def _last_scores(connection: Connection, number: int, rows: Sequence[Any]) -> dict[str, float]:
    """The last score of each trajectory that has no reward."""
    scores = _scores(connection, number, [row.trajectory_id for row in rows if row.reward is None])
    return {name: found[-1] for name, found in scores.items()}


def _summary(rows: Sequence[Any], scores: Mapping[str, float], now: float) -> admin_service_pb2.TrajectorySummary:
    """Sums up trajectories that come in the order of their lifetimes."""
    told = [scores.get(row.trajectory_id) if row.reward is None else row.reward for row in rows]
    rewards = [each for each in told if each is not None and isfinite(each)]
    return admin_service_pb2.TrajectorySummary(
        trajectories=len(rows),
        open=sum(row.closed_at is None for row in rows),
        mean_reward=fmean(rewards) if rewards else None,
        median_s=_lifetime(rows[len(rows) // 2], now) if rows else 0.0,
    )


def _fill_from_actions(
    connection: Connection, number: int, told: Sequence[admin_service_pb2.TrajectoryHistory]
) -> None:
    """Adds what only the actions of trajectories tell: their task, and scores."""
    named = {each.trajectory_id: each for each in told}
    for row in _up_to(READ_BYTES, connection, statements.TASKS, {"job": number, "ids": list(named)}):
        named[row.trajectory_id].task = task_of(row)
    for trajectory_id, scores in _scores(connection, number, list(named)).items():
        named[trajectory_id].scores.extend(scores)


def _scores(connection: Connection, number: int, ids: Sequence[str]) -> Mapping[str, list[float]]:
    """The scores of trajectories that have any, in the order of the submits of their rewards."""
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for row in _up_to(SCORES_BYTES, connection, statements.SCORES, {"job": number, "ids": ids}):
        scores[row.trajectory_id].append(score_in(row.outcome))
    return scores


def _up_to(most: int, connection: Connection, rows: Select[Any], given: Mapping[str, Any]) -> Iterator[Any]:
    """Rows, as they are read, until their last columns have so many bytes together."""
    with connection.execute(rows, given, execution_options={"yield_per": _AT_ONCE}) as found:
        for row in found:
            most -= len(row[-1])
            if most < 0:
                return
            yield row


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
    found = connection.execute(statements.BODIES[contents], {"ids": [row.id for row in rows]})
    return {row.id: (row.spec, row.outcome) for row in found}


def _fill_contents(message: admin_service_pb2.ActionHistory, spec: bytes, outcome: bytes | None) -> None:
    if spec:
        message.spec.CopyFrom(action_pb2.ActionSpec.FromString(spec))
    if outcome is not None:
        message.outcome.CopyFrom(outcome_pb2.Outcome.FromString(outcome))


def _size(field: str, asked: int) -> int:
    if not 0 <= asked <= MAX_PAGE:
        raise invalid(field, asked, f"must be between 0 and {MAX_PAGE}")
    return asked


def _named(ids: Sequence[str]) -> dict[str, Any]:
    if len(ids) > MAX_NAMED:
        raise invalid("trajectory_ids", f"{len(ids)} ids", f"must be at most {MAX_NAMED}")
    return {"ids": [_storable("trajectory_ids", each) for each in ids]} if ids else {}


def _place(token: str, of: Callable[[str], T]) -> dict[str, Any]:
    """Returns the sort value and the id of the last row of the page before; nothing for the first page."""
    if not token:
        return {}
    number, _, rest = _storable("page_token", token).partition(".")
    try:
        by, row_id = of(rest), int(number)
    except ValueError:
        row_id = _NO_ID
    if not 0 < row_id < _NO_ID or (isinstance(by, int | float) and not 0 <= by < _NO_ID):
        raise invalid("page_token", token, "must be the next_page_token of the page before")
    return {"after": by, "after_id": row_id}


def _storable(field: str, text: str) -> str:
    if "\0" in text:
        raise invalid(field, text, "must have no NUL")
    return text
