"""Keeps call records in SQL: SQLite by default, PostgreSQL by URL. A method that returns has committed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from callsheet.gateway.server.keys import SECRET_BYTES
from callsheet.gateway.server.schema import METADATA, VERSION, calls, facts, trajectories
from callsheet.options.private_files import make_private_directory
from sqlalchemy import Connection, Engine, and_, create_engine, delete, event, insert, make_url, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

T = TypeVar("T")
SQLITE_FILE: Final = "gateway.sqlite3"
_LOCK_TIMEOUT_S: Final = 10


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
    state: CallState


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """What is kept of a trajectory.

    Attributes:
        calls: In the order in which they began.
        records: Of its conversation's turns, in their order.
        closed: Whether it was seen closed.
    """

    calls: Sequence[CallRow]
    records: Sequence[Mapping[str, Any]]
    closed: bool


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
        engine = _engine(data_dir, database_url)
        try:
            METADATA.create_all(engine)
            version = _fact(engine, "version", lambda: str(VERSION))
            if version != str(VERSION):
                raise ValueError(f"database: its tables are of version {version}; this gateway needs {VERSION}")
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def secret(self) -> bytes:
        """The secret of keys, the same for all gateways of this database; made once. Blocks."""
        return bytes.fromhex(_fact(self._engine, "secret", lambda: secrets.token_hex(SECRET_BYTES)))

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    async def load(self, job_id: str, trajectory_id: str) -> KeptTrajectory:
        """Returns what is kept of a trajectory."""

        def run(connection: Connection) -> KeptTrajectory:
            of_it = _of(calls, job_id, trajectory_id)
            rows = connection.execute(select(*_ROW).where(of_it).order_by(calls.c.number)).all()
            kept = select(calls.c.record).where(of_it, calls.c.record.is_not(None)).order_by(calls.c.turn)
            records = [json.loads(record) for (record,) in connection.execute(kept)]
            closed_at = connection.scalar(
                select(trajectories.c.closed_at).where(_of(trajectories, job_id, trajectory_id))
            )
            found = [CallRow(*row[:-1], state=CallState(row[-1])) for row in rows]
            return KeptTrajectory(found, records, closed_at is not None)

        return await self._run(run)

    async def begin(self, job_id: str, trajectory_id: str, row: CallRow, now: float) -> None:
        """Keeps a call that begins."""

        def run(connection: Connection) -> None:
            if row.number == 0 and not connection.scalar(
                select(trajectories.c.job_id).where(_of(trajectories, job_id, trajectory_id))
            ):
                connection.execute(insert(trajectories).values(job_id=job_id, trajectory_id=trajectory_id))
            connection.execute(
                insert(calls).values(
                    job_id=job_id,
                    trajectory_id=trajectory_id,
                    number=row.number,
                    digest=row.digest,
                    ordinal=row.ordinal,
                    action_id=row.action_id,
                    turns_before=row.turns_before,
                    state=row.state.value,
                    begun_at=now,
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
    ) -> None:
        """Keeps the reply of a call, and the record of its turn if it has one."""
        values = {
            "state": CallState.DONE.value,
            "turn": turn,
            "record": None if record is None else json.dumps(record, separators=(",", ":")),
            "reply": json.dumps(reply, separators=(",", ":")),
        }
        await self._change(job_id, trajectory_id, number, values)

    async def fail(self, job_id: str, trajectory_id: str, number: int) -> None:
        """Keeps that a call ended without a reply."""
        await self._change(job_id, trajectory_id, number, {"state": CallState.FAILED.value})

    async def reply(self, job_id: str, trajectory_id: str, number: int) -> dict[str, Any]:
        """Returns the reply of a call that is done."""
        wanted = select(calls.c.reply).where(_of(calls, job_id, trajectory_id), calls.c.number == number)
        kept: dict[str, Any] = json.loads(await self._run(lambda connection: connection.execute(wanted).scalar_one()))
        return kept

    async def open_trajectories(self) -> dict[str, list[str]]:
        """Returns the trajectories that were not seen closed, by job."""
        wanted = select(trajectories.c.job_id, trajectories.c.trajectory_id).where(trajectories.c.closed_at.is_(None))
        found: dict[str, list[str]] = {}
        for job_id, trajectory_id in await self._run(lambda connection: connection.execute(wanted).all()):
            found.setdefault(job_id, []).append(trajectory_id)
        return found

    async def note_closed(self, job_id: str, trajectory_ids: Sequence[str], now: float) -> None:
        """Notes that trajectories were seen closed."""

        def run(connection: Connection) -> None:
            for trajectory_id in trajectory_ids:
                connection.execute(
                    update(trajectories).where(_of(trajectories, job_id, trajectory_id)).values(closed_at=now)
                )

        await self._run(run)

    async def forget(self, job_id: str, trajectory_id: str) -> None:
        """Removes all that is kept of a trajectory."""

        def run(connection: Connection) -> None:
            _delete(connection, job_id, trajectory_id)

        await self._run(run)

    async def forget_closed(self, closed_before: float) -> list[tuple[str, str]]:
        """Removes trajectories that were seen closed before a time, and the calls outside of trajectories before it.

        Returns:
            Jobs and trajectories that were removed.
        """

        def run(connection: Connection) -> list[tuple[str, str]]:
            wanted = select(trajectories.c.job_id, trajectories.c.trajectory_id).where(
                trajectories.c.closed_at < closed_before
            )
            found = [(job_id, trajectory_id) for job_id, trajectory_id in connection.execute(wanted)]
            for job_id, trajectory_id in found:
                _delete(connection, job_id, trajectory_id)
            connection.execute(delete(calls).where(calls.c.trajectory_id == "", calls.c.begun_at < closed_before))
            return found

        return await self._run(run)

    async def _change(self, job_id: str, trajectory_id: str, number: int, values: Mapping[str, Any]) -> None:
        change = update(calls).where(_of(calls, job_id, trajectory_id), calls.c.number == number).values(values)
        await self._run(lambda connection: connection.execute(change))

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
    calls.c.state,
)


def _of(table: Any, job_id: str, trajectory_id: str) -> Any:
    return and_(table.c.job_id == job_id, table.c.trajectory_id == trajectory_id)


def _delete(connection: Connection, job_id: str, trajectory_id: str) -> None:
    for table in (calls, trajectories):
        connection.execute(delete(table).where(_of(table, job_id, trajectory_id)))


def _fact(engine: Engine, name: str, make: Callable[[], str]) -> str:
    """A fact of the database, made once, whoever else starts at the same time."""
    wanted = select(facts.c.value).where(facts.c.name == name)
    with engine.begin() as connection:
        found = connection.scalar(wanted)
    if found is None:
        # Another gateway that starts may have made it meanwhile.
        with suppress(IntegrityError), engine.begin() as connection:
            connection.execute(insert(facts).values(name=name, value=make()))
        with engine.begin() as connection:
            found = connection.execute(wanted).scalar_one()
    return str(found)


def _engine(data_dir: Path, database_url: str | None) -> Engine:
    if database_url is not None:
        url = make_url(database_url)
        if url.get_backend_name() != "postgresql":
            raise ValueError(f"database_url: {url.get_backend_name()!r}: must start with 'postgresql://'")
        arguments = {
            "connect_timeout": _LOCK_TIMEOUT_S,
            "tcp_user_timeout": _LOCK_TIMEOUT_S * 1000,
            "options": f"-c statement_timeout={_LOCK_TIMEOUT_S}s -c lock_timeout={_LOCK_TIMEOUT_S}s",
            "application_name": "callsheet-gateway",
        }
        return create_engine(url.set(drivername="postgresql+psycopg"), connect_args=arguments, hide_parameters=True)
    make_private_directory(data_dir)
    file = data_dir / SQLITE_FILE
    # Readable for its owner alone, whatever the mask is; SQLite makes the files beside it like it.
    file.touch(mode=0o600)
    address = URL.create("sqlite", database=str(file))
    # Parameters are prompts and replies, which no error may show.
    engine = create_engine(address, connect_args={"timeout": _LOCK_TIMEOUT_S}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    return engine
