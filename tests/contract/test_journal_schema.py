"""Connections are durable, and a database with tables of another schema is refused and stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from callsheet.scheduler.store.engine import READ_ONLY, SQLITE_FILE, create_journal_engine, sqlite_engine
from callsheet.scheduler.store.journal_errors import DatabaseSettingError, JournalVersionError
from callsheet.scheduler.store.schema import SCHEMA
from sqlalchemy import make_url

from tests.support.journals import JournalPlace
from tests.support.servers import PostgresServer, postgres_server

REFUSED = f"it must be empty or have schema '{SCHEMA}': finish or drop its work with the Callsheet that wrote it; then "


def assert_is_refused(place: JournalPlace, found: str) -> None:
    """Opens a journal that is refused, with advice, and stays as it is."""
    before = place.rows()
    with pytest.raises(JournalVersionError) as caught:
        place.open()
    database = make_url(place.url).database if place.url else place.data_dir / SQLITE_FILE
    advice = "drop the database, or name another one by --database-url-file"
    if place.url is None:
        advice = f"move or delete the data directory {str(place.data_dir)!r}, or name another one by --data-dir"
    said = str(caught.value)
    assert said.startswith("database: ")
    assert f"{database} has {found}; {REFUSED}{advice}" in said
    assert place.rows() == before


def rename_schema(place: JournalPlace, name: str) -> None:
    """Gives a journal's schema another name."""
    with place.outside() as connection:
        connection.execute(f"UPDATE journal_schema SET name = '{name}'")


def test_a_scheduler_does_not_start_on_such_a_journal_and_leaves_each_byte(tmp_path: Path) -> None:
    place = JournalPlace(tmp_path / "data", None)
    place.open().close()
    rename_schema(place, "journal-9")
    before = (place.data_dir / SQLITE_FILE).read_bytes()
    command = [sys.executable, "-m", "callsheet.cli.main", "scheduler", "--listen", "127.0.0.1:0", "--data-dir"]
    result = subprocess.run([*command, place.data_dir], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr.startswith("callsheet: database: sqlite:///")) == (1, True)
    assert f"has a journal of schema 'journal-9'; it must be empty or have schema '{SCHEMA}'" in result.stderr
    assert (place.data_dir / SQLITE_FILE).read_bytes() == before


@pytest.mark.parametrize("found", ["journal-1", "journal-9", "0015"])
def test_a_journal_of_a_newer_or_foreign_schema_is_refused(place: JournalPlace, found: str) -> None:
    place.open().close()
    rename_schema(place, found)
    assert_is_refused(place, f"a journal of schema '{found}'")
    rename_schema(place, SCHEMA)
    place.open().close()


@pytest.mark.parametrize("table", ["actions", "journal_schema"])
def test_tables_without_a_schema_are_refused(place: JournalPlace, table: str) -> None:
    place.data_dir.mkdir()
    with place.outside() as connection:
        connection.execute(f"CREATE TABLE {table} (name text)")
    assert_is_refused(place, "tables of no known schema")
    with place.outside() as connection:
        connection.execute(f"DROP TABLE {table}")
    with place.begun() as journal:
        assert journal.epoch == 1


def test_tables_of_other_programs_are_let_be(place: JournalPlace) -> None:
    place.data_dir.mkdir()
    with place.outside() as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('of another program')")
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
    with pytest.raises(DatabaseSettingError, match="journal_mode = 'memory'"):
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
    with postgres_server("fsync=off") as server, pytest.raises(DatabaseSettingError, match="fsync = 'off'"):
        JournalPlace(tmp_path, server.url).open()


def test_a_database_that_cannot_store_every_text_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(DatabaseSettingError, match="server_encoding = 'LATIN1'"):
        JournalPlace(tmp_path, postgres.url.replace("/postgres?", "/latin?")).open()


def test_logs_show_no_password(postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = make_url(postgres.new_database()).set(password="hunter2")
    JournalPlace(tmp_path, url.render_as_string(hide_password=False)).open().close()
    shown = capsys.readouterr()
    assert "journal_opened" in shown.out
    assert "hunter2" not in shown.out + shown.err
