"""Makes the journal's tables, and brings those of an earlier schema to today's, in one transaction of its caller.

Alembic's operations change the tables: on SQLite they copy a table whose columns change, on PostgreSQL they alter it.
Alembic's own version table and folder of scripts are not used. Every Callsheet, the earlier ones too, finds the name of
the schema in `journal_schema`, and refuses a name that it does not know.
"""

from __future__ import annotations

from contextlib import ExitStack
from errno import ENOENT
from pathlib import Path
from typing import Final

import structlog
from callsheet.scheduler.store.engine import LOCK_TIMEOUT_S, READ_ONLY, SQLITE_FILE, create_journal_engine, shown_url
from callsheet.scheduler.store.journal_errors import DataDirectoryUnusableError, JournalVersionError
from callsheet.scheduler.store.locks import DataDirectoryLock, lock_database
from callsheet.scheduler.store.migration_steps import Migration, Taken, add_drains, add_incarnations
from callsheet.scheduler.store.schema import SCHEMA, journal_schema, metadata, scheduler
from sqlalchemy import Connection, insert, inspect, select, text, update

_log = structlog.get_logger(__name__)
STEPS: Final = (
    Migration(
        "journal-3",
        "journal-4",
        "Actions get the incarnation of the manager that has their attempt; it is unknown for those that are there.",
        "actions",
        add_incarnations,
    ),
    Migration("journal-4", "journal-5", "A table for drains of managers and their deadlines is made.", "", add_drains),
)
"""All steps, the oldest first."""


def prepare_tables(connection: Connection, database: str, advice: str) -> None:
    """Makes the tables in a database that has none of them, or migrates those of an earlier schema.

    The caller holds the lock of the data directory or database, so no other scheduler does the same.

    Args:
        connection: Outside of a transaction.
        database: Its name in errors and logs.
        advice: What its owner can do in place of using it.

    Raises:
        JournalVersionError: The database has tables of an unknown schema. Nothing in it was changed.
    """
    with connection.begin():
        if not set(inspect(connection).get_table_names()) & metadata.tables.keys():
            metadata.create_all(connection)
            connection.execute(insert(journal_schema).values(name=SCHEMA))
            connection.execute(insert(scheduler).values(id=1, epoch=0))
        else:
            steps = steps_from(connection, database, advice)
            migrate(connection, steps)
            if steps:
                _log.info("journal_migrated", database=database, before=steps[0].before, after=SCHEMA)


def migrate(connection: Connection, steps: tuple[Migration, ...]) -> None:
    """Takes steps in the caller's transaction; until its commit the database is what it was."""
    if not steps:
        return
    # Not above: a scheduler whose journal is today's starts without them.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    operations = Operations(MigrationContext.configure(connection, opts={"target_metadata": metadata}))
    for step in steps:
        step.change(operations)
    connection.execute(update(journal_schema).values(name=SCHEMA))


def steps_from(connection: Connection, database: str, advice: str) -> tuple[Migration, ...]:
    """Returns what brings a database to today's schema; nothing if it has that.

    Raises:
        JournalVersionError: The database has an unknown schema, or none.
    """
    present = set(inspect(connection).get_table_names())
    found = connection.scalar(select(journal_schema.c.name)) if journal_schema.name in present else None
    earlier = [step.before for step in STEPS]
    if found not in (*earlier, SCHEMA):
        raise JournalVersionError(database, found, SCHEMA, advice)
    return STEPS[earlier.index(found) :] if found in earlier else ()


def migrate_stopped(data_dir: Path, database_url: str | None = None, *, dry_run: bool) -> list[Taken]:
    """Migrates the journal of a scheduler that does not run, and returns the steps to today's schema.

    Args:
        data_dir: The scheduler's directory, which has the journal if there is no database.
        database_url: As the scheduler has it; None for SQLite.
        dry_run: Change nothing in the journal.

    Raises:
        DataDirectoryLockedError: A scheduler has the directory.
        DataDirectoryUnusableError: The directory has no journal, or cannot be used.
        DatabaseLockedError: A scheduler has the database.
        JournalVersionError: The journal has an unknown schema, or there is none.
        ValueError: `database_url` is not of PostgreSQL.
        sqlalchemy.exc.SQLAlchemyError: The database cannot be reached or used.
    """
    if database_url is None and not (data_dir / SQLITE_FILE).is_file():
        raise DataDirectoryUnusableError(data_dir, FileNotFoundError(ENOENT, f"it has no {SQLITE_FILE}"))
    with ExitStack() as stack:
        if database_url is None:
            stack.callback(DataDirectoryLock(data_dir).release)
        engine = create_journal_engine(data_dir, database_url)
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.execution_options(**{READ_ONLY: dry_run}).connect())
        lock_database(connection, LOCK_TIMEOUT_S)
        database = shown_url(engine.url)
        with connection.begin():
            steps = steps_from(connection, database, "migrate it with the Callsheet that knows it")
            taken = [Taken(each.before, each.after, each.does, _count(connection, each.table)) for each in steps]
            if not dry_run:
                migrate(connection, steps)
    return taken


def _count(connection: Connection, table: str) -> int:
    return connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0 if table else 0


def check_schema(connection: Connection, database: str, advice: str) -> None:
    """Checks that a database that is only read has today's tables.

    Raises:
        JournalVersionError: It has others, or none.
    """
    if steps := steps_from(connection, database, advice):
        raise JournalVersionError(database, steps[0].before, SCHEMA, f"callsheet journal migrate, or {advice}")
