"""Opens a gateway's database: SQLite by default, PostgreSQL by URL. All of it blocks."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from callsheet.gateway.server.keys import SECRET_BYTES
from callsheet.gateway.server.schema import METADATA, VERSION, facts
from callsheet.options.private_files import make_private_directory
from sqlalchemy import Engine, create_engine, event, insert, inspect, make_url, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

SQLITE_FILE: Final = "gateway.sqlite3"
_LOCK_TIMEOUT_S: Final = 10


def open_database(data_dir: Path, database_url: str | None) -> Engine:
    """Opens the database, and makes its tables if there are none.

    Raises:
        ValueError: The URL is not of PostgreSQL, or the tables are of another version.
        sqlalchemy.exc.SQLAlchemyError: The database cannot be used.
        OSError: The data directory cannot be used.
    """
    engine = _engine(data_dir, database_url)
    try:
        with engine.begin() as connection:
            is_new = not inspect(connection).has_table(facts.name)
        if is_new:
            METADATA.create_all(engine)
        version = _fact(engine, "version", lambda: VERSION)
        if version != VERSION:
            has = f"{engine.url.set(query={}).render_as_string()} has call records of version {version!r}"
            advice = "take its samples with the Callsheet that wrote them; then delete it, or name another one"
            raise ValueError(f"database: {has}; it must be empty or have version {VERSION!r}: {advice}")
    except BaseException:
        engine.dispose()
        raise
    return engine


def secret_of(engine: Engine) -> bytes:
    """The secret of keys, the same for all gateways of a database; made once."""
    return bytes.fromhex(_fact(engine, "secret", lambda: secrets.token_hex(SECRET_BYTES)))


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
    engine = create_engine(address, paramstyle="named", connect_args={"timeout": _LOCK_TIMEOUT_S}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    return engine
