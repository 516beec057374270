"""The journal of a run that is over, opened to be looked at: no lock stays taken, and nothing is written.

SQLite may write beside a database that it only reads, for instance the index of a write-ahead log that a killed process
left. So it is given a copy, in a directory of its own.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import Final

from callsheet.scheduler.core.words.recovered import Recovered
from callsheet.scheduler.store.engine import (
    READ_ONLY,
    SQLITE_FILE,
    postgresql_engine,
    postgresql_url,
    shown_url,
    sqlite_engine,
)
from callsheet.scheduler.store.journal_errors import (
    DatabaseLockedError,
    DataDirectoryLockedError,
    DataDirectoryUnusableError,
)
from callsheet.scheduler.store.learned import SavedRow, load_nodes
from callsheet.scheduler.store.locks import LOCK_FILE, database_holder, holder_of
from callsheet.scheduler.store.migrations import check_schema
from callsheet.scheduler.store.recovered_rows import load_recovered
from callsheet.scheduler.store.schema import scheduler
from sqlalchemy import Engine, select

_ADVICE: Final = "open it with the Callsheet that wrote it"


class DeadJournal:
    """The content of a journal, and an engine to read more of it.

    Attributes:
        engine: Of connections that only read.
        recovered: What a scheduler would go on from.
        epoch: Of the last scheduler.
    """

    engine: Engine
    recovered: Recovered
    epoch: int

    def __init__(self, data_dir: Path, database_url: str | None = None) -> None:
        """Opens it.

        Args:
            data_dir: The data directory of the scheduler that ran; with a database its journal is not there.
            database_url: As the scheduler had it.

        Raises:
            DataDirectoryLockedError: A scheduler runs on it, or began to meanwhile.
            DatabaseLockedError: Likewise.
            DataDirectoryUnusableError: There is no journal, or it cannot be read or copied.
            JournalVersionError: Another version of Callsheet wrote it.
            ValueError: `database_url` is not of PostgreSQL.
            sqlalchemy.exc.SQLAlchemyError: The database cannot be reached or used.
        """
        self._copy = tempfile.TemporaryDirectory(prefix="callsheet-")
        try:
            if database_url is None:
                engine = sqlite_engine(str(_copied(data_dir, Path(self._copy.name))))
            else:
                engine = postgresql_engine(postgresql_url(database_url))
            self.engine = engine.execution_options(**{READ_ONLY: True, "postgresql_readonly": True})
            self._read(str(data_dir / SQLITE_FILE) if database_url is None else shown_url(engine.url))
        except BaseException:
            self.close()
            raise

    def load_predictors(self) -> list[SavedRow]:
        """Returns the saved state of predictors."""
        with self.engine.connect() as connection:
            return load_nodes(connection)

    def close(self) -> None:
        """Disconnects, and removes the copy; a second call does nothing."""
        if hasattr(self, "engine"):
            self.engine.dispose()
        self._copy.cleanup()

    def _read(self, database: str) -> None:
        with self.engine.connect() as connection:
            if (holder := database_holder(connection)) is not None:
                raise DatabaseLockedError(database, holder)
            check_schema(connection, database, _ADVICE)
            self.recovered = load_recovered(connection)
            self.epoch = connection.scalar(select(scheduler.c.epoch)) or 0


def _copied(data_dir: Path, to: Path) -> Path:
    """The copy of a journal that nobody writes."""
    try:
        _check_unused(data_dir)
        shutil.copyfile(data_dir / SQLITE_FILE, to / SQLITE_FILE)
        log = data_dir / f"{SQLITE_FILE}-wal"
        if log.exists():
            shutil.copyfile(log, to / log.name)
        # If one has begun since, the two files may not belong together.
        _check_unused(data_dir)
    except OSError as error:
        raise DataDirectoryUnusableError(data_dir, error) from error
    return to / SQLITE_FILE


def _check_unused(data_dir: Path) -> None:
    """Checks that no scheduler has the data directory, by a shared lock that is let go at once."""
    if not (data_dir / SQLITE_FILE).is_file():
        raise FileNotFoundError(errno.ENOENT, f"it has no {SQLITE_FILE}")
    if not (data_dir / LOCK_FILE).exists():
        return
    with (data_dir / LOCK_FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryLockedError(data_dir, holder_of(data_dir)) from None
