"""Errors of the journal and its writer."""

from __future__ import annotations

from pathlib import Path


class JournalError(Exception):
    """Base of them."""


class DataDirectoryUnusableError(JournalError):
    """The data directory cannot be made, or nothing can be written in it."""

    def __init__(self, data_dir: Path, error: OSError) -> None:
        super().__init__(f"data directory {str(data_dir)!r} cannot be used: {error.strerror or error}")


class DataDirectoryLockedError(JournalError):
    """Another scheduler, with the process id `holder` if that could be read, has locked the data directory."""

    def __init__(self, data_dir: Path, holder: int | None) -> None:
        by = "another scheduler" if holder is None else f"the scheduler with process id {holder}"
        super().__init__(f"data directory {str(data_dir)!r} is in use by {by}: one scheduler per data directory")


class DatabaseLockedError(JournalError):
    """Another scheduler is connected to the database; `holder` names its connection if that could be read."""

    def __init__(self, database: str, holder: str | None) -> None:
        by = holder or "another scheduler"
        super().__init__(f"database {database} is in use by {by}: one scheduler per database")


class DatabaseSettingError(JournalError):
    """The database has a setting under which a commit that was acknowledged can be lost, or a text cannot be stored."""

    def __init__(self, setting: str, value: str, required: str) -> None:
        super().__init__(f"the journal's database has {setting} = {value!r}, and a journal needs {required}")


class JournalVersionError(JournalError):
    """The database has tables of another schema than this program's, or of no journal; `found` is its name if known."""

    def __init__(self, database: str, found: str | None, needed: str, advice: str) -> None:
        has = "tables of no known schema" if found is None else f"a journal of schema {found!r}"
        super().__init__(f"database: {database} has {has}; it must be empty or have schema {needed!r}: {advice}")


class StaleEpochError(JournalError):
    """Another scheduler has begun a newer epoch; this one may write nothing more."""

    def __init__(self, own: int, stored: int) -> None:
        super().__init__(f"this scheduler's epoch is {own} and the journal's is {stored}: another scheduler took over")


class InconsistentRecordError(JournalError):
    """A record contradicts the journal: the record before it is missing, or its action has an outcome already."""


class JournalBackloggedError(JournalError):
    """More records wait for their commit than the writer's bound allows."""

    def __init__(self, backlog: int, limit: int) -> None:
        super().__init__(f"{backlog} records wait for their commit, and the limit is {limit}")


class JournalStoppedError(JournalError):
    """The writer was closed or has failed, and takes no more records."""
