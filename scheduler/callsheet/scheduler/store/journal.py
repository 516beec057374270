"""The write-ahead journal: what a restarted scheduler continues from."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.core.words.recovered import Recovered
from callsheet.scheduler.store.closed_jobs import ClosedJobs
from callsheet.scheduler.store.engine import READ_ONLY, create_journal_engine, driver_transaction, shown_url
from callsheet.scheduler.store.free_space import give_back, has_much_free, warn_without_vacuum
from callsheet.scheduler.store.journal_errors import (
    StaleEpochError,
)
from callsheet.scheduler.store.learned import SavedRow, load_nodes, replace_nodes
from callsheet.scheduler.store.locks import DataDirectoryLock, lock_database
from callsheet.scheduler.store.merge import merge
from callsheet.scheduler.store.migrations import prepare_tables
from callsheet.scheduler.store.recovered_rows import load_recovered
from callsheet.scheduler.store.row_changes import Numbering
from callsheet.scheduler.store.schema import (
    actions,
    batches,
    closed_jobs,
    forgotten_actions,
    jobs,
    scheduler,
    trajectories,
)
from callsheet.scheduler.store.statements import ChangeWriter
from sqlalchemy import (
    Connection,
    Engine,
    func,
    select,
    update,
)

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
        prepare_tables(self._connection, database, self._advice())
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
        self._closed.add(int(number) for (number,) in changes.tables[closed_jobs].new)
        if changes.tables[forgotten_actions]:
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
        """Return whether rows of closed jobs are to go, or space that deleted rows left; `purge` sees to both."""
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
    numbers = (trajectories.c.id, actions.c.id, forgotten_actions.c.number, batches.c.number)
    newest = Counter({column.table: connection.scalar(select(func.max(column))) or 0 for column in numbers})
    newest[jobs] = max([0, *open_jobs.values(), *garbage])
    return Numbering(open_jobs, newest)
