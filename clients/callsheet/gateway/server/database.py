"""Opens a gateway's database: SQLite by default, PostgreSQL by URL. All of it blocks."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from callsheet.gateway.server.keys import SECRET_BYTES
from callsheet.gateway.server.schema import METADATA, VERSION, calls, facts, trajectories
from callsheet.options.private_files import make_private_directory
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, inspect, make_url, select, text, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

SQLITE_FILE: Final = "gateway.sqlite3"
_LOCK_TIMEOUT_S: Final = 10
_ADDED: Final = ((trajectories, "bytes", "BIGINT NOT NULL DEFAULT 0"), (calls, "action", "TEXT"))
"""Columns of version 2 that version 1 has not."""


def open_database(data_dir: Path, database_url: str | None) -> Engine:
    """Opens the database, and makes its tables if there are none.

    Raises:
        ValueError: The URL is not of PostgreSQL, or the tables are of another version.
        sqlalchemy.exc.SQLAlchemyError: The database cannot be used.
        OSError: The data directory cannot be used.
    """
    engine = _engine(data_dir, database_url)
    try:
        METADATA.create_all(engine)
        version = _fact(engine, "version", lambda: str(VERSION))
        if version == "1":
            with engine.begin() as connection:
                _from_version_1(connection)
        elif version != str(VERSION):
            raise ValueError(f"database: its tables are of version {version}; this gateway needs {VERSION}")
    except BaseException:
        engine.dispose()
        raise
    return engine


def secret_of(engine: Engine) -> bytes:
    """The secret of keys, the same for all gateways of a database; made once."""
    return bytes.fromhex(_fact(engine, "secret", lambda: secrets.token_hex(SECRET_BYTES)))


def _from_version_1(connection: Connection) -> None:
    for table, name, kind in _ADDED:
        if name not in {column["name"] for column in inspect(connection).get_columns(table.name)}:
            connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))
    ours = (calls.c.job_id == trajectories.c.job_id) & (calls.c.trajectory_id == trajectories.c.trajectory_id)
    size = func.length(func.coalesce(calls.c.record, "")) + func.length(func.coalesce(calls.c.reply, ""))
    held = select(func.coalesce(func.sum(size), 0)).where(ours).scalar_subquery()
    connection.execute(update(trajectories).values(bytes=held))
    connection.execute(update(facts).where(facts.c.name == "version").values(value=str(VERSION)))


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
