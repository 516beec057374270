"""What can go wrong in the store.

StoreError
├── JournalError
│   ├── DataDirectoryUnusableError the data directory cannot be made or written
│   ├── DataDirectoryLockedError   another scheduler has the data directory
│   ├── DatabaseLockedError        another scheduler has the database
│   ├── DatabaseSettingError       the database may lose what it acknowledged, or cannot store every text
│   ├── JournalVersionError        the database has tables of another schema
│   ├── StaleEpochError            a newer scheduler has taken over
│   ├── InconsistentRecordError    a record that cannot follow those before it
│   ├── JournalBackloggedError     the writer has more to do than its bound
│   └── JournalStoppedError        the writer takes nothing more
└── PayloadStoreError
    ├── PayloadNotFoundError       no such bytes
    ├── PayloadTooLargeError       over the size limit
    ├── PayloadMismatchError       not the bytes that were announced
    ├── PayloadCorruptError        stored bytes have changed
    ├── PayloadStoreFullError      no room for more bytes
    ├── PayloadsUnusableError      what keeps the bytes cannot be used now
    └── PayloadDurabilityError     Redis would acknowledge what it may lose
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Base of all errors of the store."""


class JournalError(StoreError):
    """Base of all errors of the journal and its writer."""


class DataDirectoryUnusableError(JournalError):
    """The data directory cannot be made, or nothing can be written in it."""

    def __init__(self, data_dir: Path, error: OSError) -> None:
        super().__init__(f"data directory {str(data_dir)!r} cannot be used: {error.strerror or error}")


class DataDirectoryLockedError(JournalError):
    """Another scheduler, with the process id `holder` where that could be read, has locked the data directory."""

    def __init__(self, data_dir: Path, holder: int | None) -> None:
        by = "another scheduler" if holder is None else f"the scheduler with process id {holder}"
        super().__init__(f"data directory {str(data_dir)!r} is in use by {by}: one scheduler per data directory")


class DatabaseLockedError(JournalError):
    """Another scheduler is connected to the database; `holder` names its connection where that could be read."""

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


class PayloadStoreError(StoreError):
    """Base of all errors of payload stores."""


class PayloadNotFoundError(PayloadStoreError):
    """The store has no payload of this content."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"no payload with sha256 {sha256!r} is stored")


class PayloadTooLargeError(PayloadStoreError):
    """A payload is longer than the limit of the store, in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a payload may have at most {limit} bytes")


class PayloadMismatchError(PayloadStoreError):
    """The bytes are not those that were announced."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"the payload was announced as {expected} and is {actual}")


class PayloadCorruptError(PayloadStoreError):
    """Stored bytes no longer have the digest under which they were stored."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"the stored payload {sha256!r} is damaged: its bytes have another digest")


class PayloadStoreFullError(PayloadStoreError):
    """The store has no room; `needed` says for what, and `for_good` whether it never will."""

    def __init__(self, needed: str, reason: str, *, for_good: bool = False) -> None:
        super().__init__(f"the payload store is full: {reason}")
        self.needed = needed
        self.for_good = for_good


class PayloadsUnusableError(PayloadStoreError):
    """What keeps the bytes cannot be used now."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the payload store cannot be used: {reason}")


class PayloadDurabilityError(PayloadStoreError):
    """The Redis server may lose what it has acknowledged."""
