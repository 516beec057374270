"""Connections are durable, and the migrations make the tables that the statements expect."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from callsheet.scheduler.store.engine import READ_ONLY, create_journal_engine, sqlite_engine
from callsheet.scheduler.store.errors import DurabilityError, UnsuitableDatabaseError
from callsheet.scheduler.store.schema import metadata
from sqlalchemy import make_url

from tests.support.journals import JournalPlace
from tests.support.servers import PostgresServer, postgres_server


def test_the_migrations_make_the_tables_of_the_metadata(place: JournalPlace) -> None:
    place.open().close()
    engine = create_journal_engine(place.data_dir, place.url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_migration_that_fails_leaves_nothing_behind(place: JournalPlace) -> None:
    place.data_dir.mkdir()
    with place.outside() as connection:
        connection.execute("CREATE TABLE actions (something_else integer)")
    with pytest.raises(Exception, match="already exists"):
        place.open()
    with place.outside() as connection:
        connection.execute("DROP TABLE actions")
    with place.begun() as journal:
        assert journal.epoch == 1


def test_every_sqlite_connection_is_durable(tmp_path: Path) -> None:
    engine = create_journal_engine(tmp_path, None)
    reader = engine.execution_options(**{READ_ONLY: True})
    with reader.connect() as one, reader.connect() as other:
        for connection in (one, other):
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    engine.dispose()


def test_an_sqlite_database_without_a_write_ahead_log_is_refused() -> None:
    # In memory there is none, whatever is asked for; a file on some network file systems is the same.
    engine = sqlite_engine(":memory:")
    with pytest.raises(DurabilityError, match="journal_mode = 'memory'"):
        engine.connect()
    engine.dispose()


def test_a_database_that_acknowledges_early_by_default_is_told_not_to(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    with JournalPlace(tmp_path, url).outside() as outside:
        outside.execute(f"ALTER DATABASE {make_url(url).database} SET synchronous_commit = 'off'")
    engine = create_journal_engine(tmp_path, url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    engine.dispose()


def test_a_postgresql_server_without_fsync_is_refused(tmp_path: Path) -> None:
    with postgres_server("fsync=off") as server, pytest.raises(DurabilityError, match="fsync = 'off'"):
        JournalPlace(tmp_path, server.url).open()


def test_a_database_that_cannot_store_every_text_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(UnsuitableDatabaseError, match="server_encoding = 'LATIN1'"):
        JournalPlace(tmp_path, postgres.url.replace("/postgres?", "/latin?")).open()


def test_logs_show_no_password(postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = make_url(postgres.new_database()).set(password="hunter2")
    JournalPlace(tmp_path, url.render_as_string(hide_password=False)).open().close()
    shown = capsys.readouterr()
    assert "journal_opened" in shown.out
    assert "hunter2" not in shown.out + shown.err
