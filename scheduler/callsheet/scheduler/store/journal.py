"""The write-ahead journal: what a restarted scheduler continues from."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import structlog
from callsheet.options.private_files import make_private_directory
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.core.words.recovered import Recovered
from callsheet.scheduler.store.closed_jobs import ClosedJobs
from callsheet.scheduler.store.engine import READ_ONLY, create_journal_engine, driver_transaction, shown_url
from callsheet.scheduler.store.merge import merge
from callsheet.scheduler.store.payloads import (
    DatabaseLockedError,
    DataDirectoryLockedError,
    DataDirectoryUnusableError,
    StaleEpochError,
)
from callsheet.scheduler.store.recovered_rows import load_recovered
from callsheet.scheduler.store.row_changes import Numbering
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    closed_jobs,
    forgotten_actions,
    jobs,
    make_tables,
    predictor_nodes,
    scheduler,
    trajectories,
)
from callsheet.scheduler.store.statements import ChangeWriter
from filelock import FileLock, Timeout
from sqlalchemy import (
    Connection,
    Engine,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError

# One scheduler per data directory, and one per database.

LOCK_FILE: Final = "scheduler.lock"
HOLDER_FILE: Final = "scheduler.pid"

# The advisory lock of PostgreSQL is a number: the first eight bytes of the project's name.
ADVISORY_LOCK_KEY: Final = int.from_bytes(b"callshee", "big")


class DataDirectoryLock:
    """Holds the lock of a data directory, which is created if need be, until `release` or the end of the process."""

    def __init__(self, data_dir: Path) -> None:
        """Take the lock.

        Raises:
            DataDirectoryLockedError: Another scheduler holds it.
            DataDirectoryUnusableError: It cannot be made or written.
        """
        self._holder_file = data_dir / HOLDER_FILE
        # Not bound to a thread: the one that closes the journal need not be the one that opened it.
        self._lock = FileLock(data_dir / LOCK_FILE, timeout=0, thread_local=False, mode=0o600)
        try:
            make_private_directory(data_dir)
            self._lock.acquire()
            # In a file of its own, since taking the lock may truncate the lock file.
            self._holder_file.touch(mode=0o600)
            self._holder_file.write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout:
            raise DataDirectoryLockedError(data_dir, holder_of(data_dir)) from None
        except OSError as error:
            self._lock.release()
            raise DataDirectoryUnusableError(data_dir, error) from error

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._lock.is_locked:
            self._holder_file.unlink(missing_ok=True)
            self._lock.release()


def holder_of(data_dir: Path) -> int | None:
    """The process that took the lock of a data directory last, where that can be read."""
    try:
        return int((data_dir / HOLDER_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def lock_database(connection: Connection, timeout_s: float) -> None:
    """Take the advisory lock of a PostgreSQL database for as long as `connection` lives; on SQLite there is none.

    Waits, since a server may take a moment to notice that a killed scheduler is gone.

    Raises:
        DatabaseLockedError: Another scheduler still holds it after `timeout_s` seconds.
    """
    if connection.dialect.name != "postgresql":
        return
    try:
        with connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{max(1, round(timeout_s * 1000))}ms'"))
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK_KEY})
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        holder = database_holder(connection)
        raise DatabaseLockedError(shown_url(connection.engine.url), holder) from None


def database_holder(connection: Connection) -> str | None:
    """The name of the connection that holds a PostgreSQL database's lock; None if nobody does, and on SQLite."""
    if connection.dialect.name != "postgresql":
        return None
    query = text(
        "SELECT activity.application_name FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)"
        " WHERE lock.locktype = 'advisory' AND lock.granted"
        " AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND (lock.classid::bigint << 32) + lock.objid::bigint = :key"
    )
    with connection.begin():
        name = connection.scalar(query, {"key": ADVISORY_LOCK_KEY})
    return None if name is None else str(name)


# What deleted rows leave behind: a SQLite file gives it back, a PostgreSQL server cleans up often enough.
#
# Free pages of a file are used again before it grows. They go back to the file system where they are much of it, for
# instance after a large job was closed. PostgreSQL's autovacuum does the same; the tables tell it to come sooner.
# No function may be called inside a transaction.
# Free pages that a file may keep: so many, or so large a part of it. They are used again soon.
_KEPT_PAGES: Final = 4_096
_KEPT_PART: Final = 0.25
# Moved in one transaction; commits wait for it.
_PAGES_PER_STEP: Final = 1_000


def warn_without_vacuum(connection: Connection) -> None:
    """Warns of a PostgreSQL server that does not clean up."""
    if connection.dialect.name == "postgresql" and _scalar(connection, "SHOW autovacuum") != "on":
        _log.warning("journal_autovacuum_off", effect="the database grows with each change")


def has_much_free(connection: Connection) -> bool:
    """Whether a file has so many free pages that some should be given back."""
    if connection.dialect.name != "sqlite":
        return False
    free, pages = int(_scalar(connection, "PRAGMA freelist_count")), int(_scalar(connection, "PRAGMA page_count"))
    return free > max(_KEPT_PAGES, pages * _KEPT_PART)


def give_back(connection: Connection) -> None:
    """Gives some free pages of a file back."""
    # A script, as the driver ends a single statement without rows after its first step: here after one page.
    _driver(connection).executescript(f"PRAGMA incremental_vacuum({_PAGES_PER_STEP})")


def _scalar(connection: Connection, statement: str) -> str | int:
    cursor = _driver(connection).execute(statement)
    value: str | int = cursor.fetchone()[0]
    cursor.close()
    if connection.dialect.name != "sqlite":
        _driver(connection).rollback()
    return value


def _driver(connection: Connection) -> Any:
    driver = connection.connection.driver_connection
    if driver is None:
        raise RuntimeError("the connection is closed")
    return driver


# What the predictors learned, as rows that are replaced whole. The store does not look into them.
SavedRow = tuple[str, str]
"""A node's path and its numbers, both JSON."""


def replace_nodes(connection: Connection, saved: Sequence[SavedRow], removed: Sequence[str]) -> None:
    """Writes nodes, whether they are there or not, and deletes those removed."""
    gone = [{"key_name": _name(path)} for path in [*(path for path, _ in saved), *removed]]
    if gone:
        connection.execute(delete(predictor_nodes).where(predictor_nodes.c.name == bindparam("key_name")), gone)
    if saved:
        rows = [{"name": _name(path), "path": path, "numbers": numbers} for path, numbers in saved]
        connection.execute(insert(predictor_nodes), rows)


def load_nodes(connection: Connection) -> list[SavedRow]:
    """All nodes."""
    rows = connection.execute(select(predictor_nodes.c.path, predictor_nodes.c.numbers))
    return [(row.path, row.numbers) for row in rows]


def _name(path: str) -> str:
    # Paths hold labels and tasks of clients, and PostgreSQL's index takes no long ones.
    return sha256(path.encode()).hexdigest()


_KEEP_OR_MOVE: Final = "finish or drop its work with the Callsheet that wrote it; then "
_log = structlog.get_logger(__name__)


def open_journal(
    data_dir: Path, database_url: str | None = None, *, lock_timeout_s: float = 5.0, kept_actions: int = 0
) -> Journal:
    """Open the journal in `data_dir` (SQLite), or at `database_url` (PostgreSQL).

    The data directory is created and locked either way, since payloads are in it.

    Args:
        data_dir: The scheduler's own directory.
        database_url: For instance "postgresql://user@host/name"; None for SQLite.
        lock_timeout_s: Seconds to wait for the database to let go of a scheduler that was killed.
        kept_actions: Most actions of closed jobs of which the rows are kept.

    Raises:
        DataDirectoryLockedError: Another scheduler has the directory.
        DatabaseLockedError: Another scheduler has the database.
        DatabaseSettingError: The database would acknowledge commits that it may lose.
        JournalVersionError: Another version of Callsheet wrote it.
        ValueError: `database_url` is not of PostgreSQL.
        sqlalchemy.exc.SQLAlchemyError: The database cannot be reached or used.
    """
    lock = DataDirectoryLock(data_dir)
    try:
        journal = Journal(data_dir, database_url, lock, kept_actions)
    except BaseException:
        lock.release()
        raise
    try:
        journal.prepare(lock_timeout_s)
    except BaseException:
        journal.close()
        raise
    return journal


class Journal:
    """The journal of one scheduler, from `open_journal`.

    Call `begin_epoch` once, then `load`, then `commit`, each from one thread at a time; `outcome` from any thread. All
    writes check, in their own transaction, that no newer epoch has begun.
    """

    def __init__(self, data_dir: Path, database_url: str | None, lock: DataDirectoryLock, kept_actions: int) -> None:
        self._lock = lock
        self._data_dir = data_dir
        self._engine = create_journal_engine(data_dir, database_url)
        self._reader = self._engine.execution_options(**{READ_ONLY: True})
        # One connection for all writes. On PostgreSQL it also holds the advisory lock: when it breaks, so does the
        # next commit, and this scheduler ends.
        self._connection: Connection | None = None
        self._write_lock = threading.Lock()
        self._epoch = 0
        self._numbering = Numbering()
        self._closed = ClosedJobs(kept_actions)
        self._gives_back = False
        dialect = self._engine.dialect
        self._writer = ChangeWriter(dialect)
        # The lock on the row (on SQLite the transaction's own) keeps a newer epoch from beginning before our commit.
        self._fence = str(select(scheduler.c.epoch).with_for_update(read=True).compile(dialect=dialect))

    def prepare(self, lock_timeout_s: float) -> None:
        """Connect, take the database's lock, make the tables. Part of `open_journal`."""
        database = shown_url(self._engine.url)
        self._connection = self._engine.connect()
        lock_database(self._connection, lock_timeout_s)
        make_tables(self._connection, database, self._advice())
        warn_without_vacuum(self._connection)
        _log.info("journal_opened", database=database)

    def _advice(self) -> str:
        if self._engine.dialect.name == "sqlite":
            other = f"move or delete the data directory {str(self._data_dir)!r}, or name another one by --data-dir"
        else:
            other = "drop the database, or name another one by --database-url-file"
        return _KEEP_OR_MOVE + other

    @property
    def reader(self) -> Engine:
        """Connections that only read, beside all else; for any thread."""
        return self._reader

    @property
    def epoch(self) -> int:
        """The epoch that `begin_epoch` began; 0 before."""
        return self._epoch

    def begin_epoch(self) -> int:
        """Begin a new epoch, and commit it: the number is never given out again. From now on no older one can write."""
        statement = update(scheduler).values(epoch=scheduler.c.epoch + 1).returning(scheduler.c.epoch)
        with self._write_lock, self._connected().begin():
            self._epoch = self._connected().execute(statement).scalar_one()
            numbers = list(self._connected().scalars(select(closed_jobs.c.number)))
            self._closed.add(numbers)
            self._numbering = _load_numbering(self._connected(), numbers)
        return self._epoch

    def load(self) -> Recovered:
        """Read the open jobs, all their trajectories and actions, and what is kept of finished actions.

        Raises:
            StaleEpochError: Another scheduler has begun a newer epoch.
        """
        with self._transaction() as connection:
            return load_recovered(connection)

    def commit(self, records: Sequence[Record]) -> None:
        """Write `records`, in their order, in one transaction. They are durable when it returns.

        After an error the journal must not be used any more: what it knows of its own rows may be ahead of them.

        Raises:
            StaleEpochError: Another scheduler has begun a newer epoch; nothing was written.
            InconsistentRecordError: A record cannot follow those before it; nothing was written.
            Exception: The driver's error: the database failed; whether it was written is unknown.
        """
        self._require_epoch()
        with self._write_lock, driver_transaction(self._connected()) as cursor:
            cursor.execute(self._fence)
            self._check_epoch(cursor.fetchone()[0])
            changes = merge(records, self._numbering)
            self._writer.write(cursor, changes)
        self._closed.add(changes.closed_jobs)
        if changes.forgotten_actions:
            self._look_for_space()

    def outcome(self, job_id: str, action_id: str) -> bytes | None:
        """The outcome of an action of an open job as it was committed, or None. May be called anywhere."""
        statement = (
            select(actions.c.outcome)
            .join(jobs, jobs.c.number == actions.c.job_number)
            .where(jobs.c.job_id == job_id, actions.c.action_id == action_id)
        )
        with self._reader.connect() as connection:
            return connection.scalar(statement)

    def save_predictors(self, saved: Sequence[SavedRow], removed: Sequence[str]) -> None:
        """Write what predictors learned, and delete the nodes of the paths removed, in one transaction.

        May be called beside `commit`, from another thread; commits wait meanwhile, so it should be few rows at a time.

        Raises:
            StaleEpochError: Another scheduler has begun a newer epoch; nothing was written.
            sqlalchemy.exc.SQLAlchemyError: The database failed.
        """
        with self._transaction() as connection:
            replace_nodes(connection, saved, removed)

    def load_predictors(self) -> list[SavedRow]:
        """Read what predictors learned. May be called anywhere, also before `begin_epoch`."""
        with self._reader.connect() as connection:
            return load_nodes(connection)

    @property
    def has_garbage(self) -> bool:
        """Whether rows of closed jobs are to go, or space that deleted ones left; `purge` sees to both."""
        return self._closed.has_garbage or self._gives_back

    def purge(self, limit: int) -> None:
        """Delete up to `limit` rows of a closed job in one transaction, so that a large job stalls nobody.

        Where no rows are left to delete, some of the space that they left is given back.

        Raises:
            StaleEpochError: Another scheduler has begun a newer epoch.
        """
        if not self._closed.has_garbage:
            self._give_back()
            return
        with self._transaction() as connection:
            freed = self._closed.purge(connection, limit)
        if freed:
            self._look_for_space()

    def _give_back(self) -> None:
        if self._gives_back:
            with self._write_lock:
                give_back(self._connected())
            self._look_for_space()

    def _look_for_space(self) -> None:
        with self._write_lock:
            self._gives_back = has_much_free(self._connected())

    def close(self) -> None:
        """Disconnect and let go of the data directory; a second call does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()
        self._lock.release()

    def _connected(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the journal is closed")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction in which the stored epoch is ours until it ends."""
        self._require_epoch()
        with self._write_lock, self._connected().begin():
            self._check_epoch(self._connected().exec_driver_sql(self._fence).scalar_one())
            yield self._connected()

    def _require_epoch(self) -> None:
        if not self._epoch:
            raise RuntimeError("begin_epoch comes before everything else")

    def _check_epoch(self, stored: int) -> None:
        if stored != self._epoch:
            raise StaleEpochError(self._epoch, stored)


def _load_numbering(connection: Connection, garbage: Sequence[int]) -> Numbering:
    open_jobs = {row.job_id: row.number for row in connection.execute(select(jobs.c.job_id, jobs.c.number))}
    newest = (trajectories.c.id, actions.c.id, forgotten_actions.c.number, batches.c.number)
    following = [1 + (connection.scalar(select(func.max(column))) or 0) for column in newest]
    return Numbering(open_jobs, 1 + max([0, *open_jobs.values(), *garbage]), *following)
