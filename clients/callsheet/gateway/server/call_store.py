"""Keeps call records in SQL: SQLite by default, PostgreSQL by URL. A method that returns has committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from callsheet.gateway.server.database import open_database, secret_of
from callsheet.gateway.server.schema import calls, trajectories
from sqlalchemy import Connection, Engine, and_, delete, func, insert, or_, select, update

T = TypeVar("T")
_MOST_READ: Final = 4096


class CallState(Enum):
    """How far a call is."""

    BEGUN = "begun"
    """Its action was submitted, or is about to be."""
    DONE = "done"
    """It has its reply."""
    FAILED = "failed"
    """It ended without a reply: a retry is another call."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as it is kept, without its record and reply; see `schema.calls`."""

    number: int
    digest: str
    ordinal: int
    action_id: str
    turns_before: int
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """What is kept of a trajectory.

    Attributes:
        calls: The newest, in the order in which they began, with their states.
        records: Of its conversation's turns, in their order.
        record_bytes: Size of the records.
        closed: Whether it was seen closed.
    """

    calls: Sequence[tuple[CallRow, CallState]]
    records: Sequence[Mapping[str, Any]]
    record_bytes: int
    closed: bool


class RecordsGoneError(Exception):
    """A call ended whose row is kept no longer, so that its reply cannot be kept either."""


class CallStore:
    """The database. Its work is done by one thread at a time, which SQLite needs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one = anyio.CapacityLimiter(1)

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

    async def load(self, job_id: str, trajectory_id: str) -> KeptTrajectory:
        """Returns what is kept of a trajectory."""

        def run(connection: Connection) -> KeptTrajectory:
            of_it = _of(calls, job_id, trajectory_id)
            newest = select(*_ROW).where(of_it).order_by(calls.c.number.desc()).limit(_MOST_READ)
            rows = connection.execute(newest).all()[::-1]
            kept = select(calls.c.record).where(of_it, calls.c.record.is_not(None)).order_by(calls.c.turn)
            records = [record for (record,) in connection.execute(kept)]
            closed_at = connection.scalar(
                select(trajectories.c.closed_at).where(_of(trajectories, job_id, trajectory_id))
            )
            found = [(CallRow(*row[:-1]), CallState(row[-1])) for row in rows]
            size = sum(map(len, records))
            return KeptTrajectory(found, [json.loads(record) for record in records], size, closed_at is not None)

        return await self._run(run)

    async def begin(self, job_id: str, trajectory_id: str, row: CallRow, now: float, action: Mapping[str, Any]) -> None:
        """Keeps a call that begins. Its trajectory is not taken for closed any more.

        Args:
            job_id: The job.
            trajectory_id: The trajectory; empty for none.
            row: The call.
            now: Seconds since 1970.
            action: What a retry needs to submit the same action.
        """

        def run(connection: Connection) -> None:
            _open(connection, job_id, trajectory_id)
            connection.execute(
                insert(calls).values(
                    job_id=job_id,
                    trajectory_id=trajectory_id,
                    number=row.number,
                    digest=row.digest,
                    ordinal=row.ordinal,
                    action_id=row.action_id,
                    turns_before=row.turns_before,
                    state=CallState.BEGUN.value,
                    begun_at=now,
                    action=_text(action),
                )
            )

        await self._run(run)

    async def finish(
        self,
        job_id: str,
        trajectory_id: str,
        number: int,
        *,
        turn: int | None,
        record: Mapping[str, Any] | None,
        reply: Mapping[str, Any],
    ) -> int:
        """Keeps the reply of a call, and the record of its turn if it has one.

        Returns:
            The size of the record.

        Raises:
            RecordsGoneError: The call is kept no longer.
        """
        record_text, reply_text = None if record is None else _text(record), _text(reply)
        values = {
            "state": CallState.DONE.value,
            "turn": turn,
            "record": record_text,
            "reply": reply_text,
            "action": None,
        }
        size = len(record_text or "")

        def run(connection: Connection) -> None:
            change = update(calls).where(_of(calls, job_id, trajectory_id), calls.c.number == number).values(values)
            if connection.execute(change).rowcount != 1:
                raise RecordsGoneError(f"call {number} of trajectory {trajectory_id!r} of job {job_id!r}")
            # It was open when its last action began; where it is not now, the next look tells.
            grown = {"bytes": trajectories.c.bytes + size + len(reply_text), "closed_at": None}
            connection.execute(update(trajectories).where(_of(trajectories, job_id, trajectory_id)).values(grown))

        await self._run(run)
        return size

    async def fail(self, job_id: str, trajectory_id: str, number: int) -> None:
        """Removes a call that ended without a reply: nobody asks for it again."""
        change = delete(calls).where(_of(calls, job_id, trajectory_id), calls.c.number == number)
        await self._run(lambda connection: connection.execute(change))

    async def reply(self, job_id: str, trajectory_id: str, number: int) -> dict[str, Any] | None:
        """Returns the reply of a call that is done; None if it is kept no longer."""
        return await self._json(calls.c.reply, job_id, trajectory_id, number)

    async def action(self, job_id: str, trajectory_id: str, number: int) -> dict[str, Any] | None:
        """Returns what was kept to submit the action of a call again; None if nothing was."""
        return await self._json(calls.c.action, job_id, trajectory_id, number)

    async def kept_trajectories(self) -> dict[str, dict[str, bool]]:
        """Returns whether trajectories were seen closed, by job and trajectory."""
        wanted = select(trajectories.c.job_id, trajectories.c.trajectory_id, trajectories.c.closed_at)
        found: dict[str, dict[str, bool]] = {}
        for job_id, trajectory_id, closed_at in await self._run(lambda connection: connection.execute(wanted).all()):
            found.setdefault(job_id, {})[trajectory_id] = closed_at is not None
        return found

    async def note_closed(self, job_id: str, trajectory_ids: Sequence[str], now: float | None) -> None:
        """Notes that trajectories were seen closed; without a time, that they were seen open."""
        if not trajectory_ids:
            return

        def run(connection: Connection) -> None:
            for trajectory_id in trajectory_ids:
                connection.execute(
                    update(trajectories).where(_of(trajectories, job_id, trajectory_id)).values(closed_at=now)
                )

        await self._run(run)

    async def closed_trajectories(self, closed_by: float) -> list[tuple[str, str, int]]:
        """Returns job, trajectory and bytes of what was seen closed by some time, the oldest first."""
        wanted = (
            select(trajectories.c.job_id, trajectories.c.trajectory_id, trajectories.c.bytes)
            .where(trajectories.c.closed_at <= closed_by)
            .order_by(trajectories.c.closed_at)
        )
        rows = await self._run(lambda connection: connection.execute(wanted).all())
        return [(job_id, trajectory_id, size) for job_id, trajectory_id, size in rows]

    async def held_bytes(self) -> int:
        """Returns the size of all records and replies."""
        wanted = select(func.coalesce(func.sum(trajectories.c.bytes), 0))
        return int(await self._run(lambda connection: connection.execute(wanted).scalar_one()))

    async def forget(self, job_id: str, trajectory_id: str, closed_by: float) -> bool:
        """Removes all that is kept of a trajectory, if it was seen closed by some time; returns whether it did."""

        def run(connection: Connection) -> bool:
            gone = delete(trajectories).where(
                _of(trajectories, job_id, trajectory_id), trajectories.c.closed_at <= closed_by
            )
            if not connection.execute(gone).rowcount:
                return False
            connection.execute(delete(calls).where(_of(calls, job_id, trajectory_id)))
            return True

        return await self._run(run)

    async def forget_outside(self, done_before: float, begun_before: float) -> None:
        """Removes calls outside of trajectories: those done that began before one time, all that did before another."""
        is_old = or_(
            and_(calls.c.state == CallState.DONE.value, calls.c.begun_at < done_before),
            calls.c.begun_at < begun_before,
        )
        of_them = and_(calls.c.trajectory_id == "", is_old)

        def run(connection: Connection) -> None:
            sizes = select(calls.c.job_id, func.sum(func.length(calls.c.reply))).where(of_them).group_by(calls.c.job_id)
            for job_id, size in connection.execute(sizes).all():
                less = update(trajectories).values(bytes=trajectories.c.bytes - (size or 0))
                connection.execute(less.where(_of(trajectories, job_id, "")))
            connection.execute(delete(calls).where(of_them))
            # What has no call and no size any more is a job that is over, or begins again by itself.
            empty = ~select(calls.c.number).where(_of(calls, trajectories.c.job_id, "")).exists()
            connection.execute(delete(trajectories).where(trajectories.c.trajectory_id == "", empty))

        await self._run(run)

    async def _json(self, column: Any, job_id: str, trajectory_id: str, number: int) -> dict[str, Any] | None:
        wanted = select(column).where(_of(calls, job_id, trajectory_id), calls.c.number == number)
        text = await self._run(lambda connection: connection.execute(wanted).scalar())
        if text is None:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    async def _run(self, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        # A caller that is gone changes nothing: what began is committed, and told to those who go on.
        with anyio.CancelScope(shield=True):
            found = await anyio.to_thread.run_sync(run, limiter=self._one)
        return found  # noqa: RET504 - mypy takes the scope for one that may swallow it


_ROW: Final = (
    calls.c.number,
    calls.c.digest,
    calls.c.ordinal,
    calls.c.action_id,
    calls.c.turns_before,
    calls.c.turn,
    calls.c.state,
)


def _of(table: Any, job_id: Any, trajectory_id: str) -> Any:
    return and_(table.c.job_id == job_id, table.c.trajectory_id == trajectory_id)


def _open(connection: Connection, job_id: str, trajectory_id: str) -> None:
    """Makes the row of a trajectory if there is none, and takes back that it was seen closed."""
    of_it = _of(trajectories, job_id, trajectory_id)
    found = connection.execute(select(trajectories.c.closed_at).where(of_it)).first()
    if found is None:
        connection.execute(insert(trajectories).values(job_id=job_id, trajectory_id=trajectory_id))
    elif found[0] is not None:
        connection.execute(update(trajectories).where(of_it).values(closed_at=None))


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
