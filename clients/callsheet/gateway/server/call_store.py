"""Keeps in SQL what the scheduler does not keep of calls: SQLite by default, PostgreSQL by URL.

The scheduler keeps each action and its outcome by the action's id. Kept here is how a retry asks for it again: which
action is whose, and its prompt and sampling, which cannot be made again from the request alone. Of a call in a
trajectory the record of its turn takes their place. A method that returns has committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from callsheet.gateway.server.database import open_database, secret_of
from callsheet.gateway.server.schema import calls, closed_trajectories
from sqlalchemy import Connection, Engine, and_, bindparam, delete, func, insert, null, select, update
from sqlalchemy.exc import DBAPIError

T = TypeVar("T")
_WRITER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_KEY: Final = ("job_id", "life", "trajectory_id")
_BEGUN: Final = (*_KEY, "number", "digest", "action_id", "begun_at", "size", "action")
_BEGIN: Final = insert(calls).values({name: bindparam(name) for name in _BEGUN})
_FINISH: Final = (
    update(calls)
    .where(*(calls.c[name] == bindparam(name) for name in (*_KEY, "number")))
    .values({name: bindparam(name) for name in ("turn", "record", "size")} | {"action": null()})
)
_REOPEN: Final = delete(closed_trajectories).where(*(closed_trajectories.c[name] == bindparam(name) for name in _KEY))
_MOST_READ_OUTSIDE: Final = 4096


class JobLife(NamedTuple):
    """A job from its opening to its close. One that is opened anew under its id is another one.

    Attributes:
        job_id: Its id.
        life: As the scheduler tells it, later ones sort behind earlier ones; empty where nobody knows it.
    """

    job_id: str
    life: str = ""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as it is kept, without its action and record; see `schema.calls`."""

    number: int
    digest: str
    action_id: str
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """Calls and records that are kept of a trajectory.

    Attributes:
        calls: The calls in the order in which they began; of calls outside of trajectories only the newest.
        is_whole: Whether these are all that are kept.
        records: Records of its conversation's turns, in their order.
        record_bytes: Size of the records.
    """

    calls: Sequence[CallRow]
    records: Sequence[Mapping[str, Any]]
    record_bytes: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """A trajectory of which calls are kept, or with an empty id the calls of a job outside of trajectories.

    Attributes:
        size: Of all that is kept, in bytes.
        closed_at: When it was first seen closed, in seconds since 1970; None if it was not.
    """

    job: JobLife
    trajectory_id: str
    size: int
    closed_at: float | None


class RecordsGoneError(Exception):
    """A call ended whose row is kept no longer, so that its turn cannot be kept either."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Work in a transaction, and what became of it. It may be done twice, of which the first is rolled back."""

    work: Callable[[Connection], Any]
    found: Any = None
    error: Exception | None = None


class CallStore:
    """The database. Its work is done by one thread at a time, which SQLite needs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Written once: SQLAlchemy builds and looks up a statement for longer than the database executes it.
        self._begin, self._finish, self._reopen = (str(each.compile(engine)) for each in (_BEGIN, _FINISH, _REOPEN))
        self._one = anyio.Lock(fast_acquire=True)
        self._waiting: list[_Piece] = []

    @classmethod
    def open(cls, data_dir: Path, database_url: str | None) -> CallStore:
        """Opens the database, and makes its tables if there are none. Blocks.

        Raises:
            ValueError: The URL is not of PostgreSQL, or the tables are of another version.
            sqlalchemy.exc.SQLAlchemyError: The database cannot be used.
            OSError: The data directory cannot be used.
        """
        return cls(open_database(data_dir, database_url))

    def secret(self) -> bytes:
        """The secret of keys, the same for all gateways of this database; made once. Blocks."""
        return secret_of(self._engine)

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    async def load(self, job: JobLife, trajectory_id: str) -> KeptCalls:
        """Returns what is kept of a trajectory."""
        columns = (calls.c.number, calls.c.digest, calls.c.action_id, calls.c.turn, calls.c.record)
        newest = select(*columns).where(_of(calls, job, trajectory_id)).order_by(calls.c.number.desc())
        # Those outside may be very many, and have no records.
        wanted = newest if trajectory_id else newest.limit(_MOST_READ_OUTSIDE)
        rows = await self._run(lambda connection: connection.execute(wanted).all()[::-1])
        records = [row.record for row in sorted(rows, key=lambda row: row.turn or 0) if row.record is not None]
        found = [CallRow(row.number, row.digest, row.action_id, row.turn) for row in rows]
        is_whole = bool(trajectory_id) or len(found) < _MOST_READ_OUTSIDE
        return KeptCalls(found, [json.loads(record) for record in records], sum(map(len, records)), is_whole)

    async def newest(self, job: JobLife, trajectory_id: str, digest: str) -> CallRow | None:
        """Returns the call of a request's digest that began last; None if none is kept."""
        columns = (calls.c.number, calls.c.digest, calls.c.action_id, calls.c.turn)
        of_it = select(*columns).where(_of(calls, job, trajectory_id), calls.c.digest == digest)
        wanted = of_it.order_by(calls.c.number.desc()).limit(1)
        row = await self._run(lambda connection: connection.execute(wanted).first())
        return None if row is None else CallRow(row.number, row.digest, row.action_id, row.turn)

    async def begin(
        self, job: JobLife, trajectory_id: str, row: CallRow, now: float, action: Mapping[str, Any]
    ) -> None:
        """Keeps a call that begins. Its trajectory is not taken for closed any more.

        Args:
            job: The job.
            trajectory_id: The trajectory; empty for none.
            row: The call.
            now: Seconds since 1970.
            action: What a retry needs to submit the same action.
        """
        text = _WRITER.encode(action)
        values = _key(job, trajectory_id) | {
            "number": row.number,
            "digest": row.digest,
            "action_id": row.action_id,
            "begun_at": now,
            "size": len(text),
            "action": text,
        }

        def run(connection: Connection) -> None:
            self._execute(connection, self._reopen, values)
            self._execute(connection, self._begin, values)

        await self._run(run)

    async def finish(
        self, job: JobLife, trajectory_id: str, number: int, *, turn: int, record: Mapping[str, Any]
    ) -> int:
        """Keeps the record of a call's turn. Its trajectory is not taken for closed any more.

        Returns:
            The size of the record.

        Raises:
            RecordsGoneError: The call is kept no longer.
        """
        text = _WRITER.encode(record)
        values = _key(job, trajectory_id) | {"number": number, "turn": turn, "record": text, "size": len(text)}

        def run(connection: Connection) -> None:
            if self._execute(connection, self._finish, values) != 1:
                raise RecordsGoneError(f"call {number} of trajectory {trajectory_id!r} of job {job.job_id!r}")
            # It was open when its last action began; where it is not now, the next look tells.
            self._execute(connection, self._reopen, values)

        await self._run(run)
        return len(text)

    async def fail(self, job: JobLife, trajectory_id: str, number: int) -> None:
        """Removes a call that ended without a reply: nobody asks for it again."""
        change = delete(calls).where(_of(calls, job, trajectory_id), calls.c.number == number)
        await self._run(lambda connection: connection.execute(change))

    async def action(self, job: JobLife, trajectory_id: str, number: int) -> dict[str, Any] | None:
        """Returns what was kept to submit the action of a call again; None if nothing was."""
        wanted = select(calls.c.action).where(_of(calls, job, trajectory_id), calls.c.number == number)
        text = await self._run(lambda connection: connection.scalar(wanted))
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    async def kept(self) -> list[KeptTrajectory]:
        """Returns of what calls are kept; that which was closed first comes first, and the open ones last."""
        key = (calls.c.job_id, calls.c.life, calls.c.trajectory_id)
        sizes = select(*key, func.sum(calls.c.size).label("size")).group_by(*key).subquery()
        closed = and_(*(closed_trajectories.c[each.name] == sizes.c[each.name] for each in key))
        wanted = select(*sizes.c, closed_trajectories.c.closed_at).outerjoin_from(sizes, closed_trajectories, closed)
        rows = await self._run(lambda connection: connection.execute(wanted).all())
        found = [
            KeptTrajectory(JobLife(row.job_id, row.life), row.trajectory_id, int(row.size), row.closed_at)
            for row in rows
        ]
        return sorted(found, key=lambda each: (each.closed_at is None, each.closed_at))

    async def newest_life(self, job_id: str) -> str:
        """Returns the newest life of a job of which calls are kept; empty if there is none."""
        wanted = select(func.max(calls.c.life)).where(calls.c.job_id == job_id)
        return await self._run(lambda connection: connection.scalar(wanted)) or ""

    async def note_closed(self, job: JobLife, trajectory_ids: Sequence[str], now: float | None) -> None:
        """Notes that trajectories were seen closed; without a time, that they were seen open."""
        if not trajectory_ids:
            return
        noted = _of(closed_trajectories, job, trajectory_ids)
        rows = [{**job._asdict(), "trajectory_id": each, "closed_at": now} for each in trajectory_ids]

        def run(connection: Connection) -> None:
            connection.execute(delete(closed_trajectories).where(noted))
            if now is not None:
                connection.execute(insert(closed_trajectories), rows)

        await self._run(run)

    async def forget(self, job: JobLife, trajectory_id: str, closed_by: float) -> bool:
        """Removes all that is kept of a trajectory, if it was seen closed by some time; returns whether it did."""
        noted = _of(closed_trajectories, job, trajectory_id)

        def run(connection: Connection) -> bool:
            gone = delete(closed_trajectories).where(noted, closed_trajectories.c.closed_at <= closed_by)
            is_gone = connection.execute(gone).rowcount == 1
            if is_gone:
                connection.execute(delete(calls).where(_of(calls, job, trajectory_id)))
            return is_gone

        return await self._run(run)

    async def forget_outside(self, begun_before: float) -> None:
        """Removes calls outside of trajectories that began before some time."""
        change = delete(calls).where(calls.c.trajectory_id == "", calls.c.begun_at < begun_before)
        await self._run(lambda connection: connection.execute(change))

    def _execute(self, connection: Connection, statement: str, values: Mapping[str, Any]) -> int:
        """Executes a statement that was written once, and returns how many rows it changed."""
        try:
            cursor = connection.connection.cursor()
            cursor.execute(statement, values)
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(statement, None, error, hide_parameters=True) from error
        return int(cursor.rowcount)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        """Does a piece of work in one transaction with all that has come meanwhile: a commit waits for the disk."""
        piece = _Piece(work)
        self._waiting.append(piece)
        # A caller that is gone changes nothing: what began is committed, and told to those who go on.
        with anyio.CancelScope(shield=True):
            async with self._one:
                if piece in self._waiting:
                    pieces, self._waiting = self._waiting, []
                    await anyio.to_thread.run_sync(self._commit, pieces)
        if piece.error is not None:
            raise piece.error
        return piece.found  # type: ignore[no-any-return]

    def _commit(self, pieces: Sequence[_Piece]) -> None:
        try:
            with self._engine.begin() as connection:
                for piece in pieces:
                    piece.found = piece.work(connection)
        except Exception as error:
            if len(pieces) == 1:
                pieces[0].error = error
                return
            # None of them is kept: each is tried by itself, and that which fails is told so.
            for piece in pieces:
                self._commit([piece])


def _key(job: JobLife, trajectory_id: str) -> dict[str, Any]:
    return {**job._asdict(), "trajectory_id": trajectory_id}


def _of(table: Any, job: JobLife, trajectory_id: Any) -> Any:
    """Returns the condition for the rows of a trajectory, or of each of several."""
    of_it = table.c.trajectory_id
    return and_(
        table.c.job_id == job.job_id,
        table.c.life == job.life,
        of_it.in_(trajectory_id) if isinstance(trajectory_id, list) else of_it == trajectory_id,
    )
