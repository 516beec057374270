"""The journal of a scheduler that is stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from callsheet.options.common import DataDir
from callsheet.scheduler.service.settings import DatabaseUrl

if TYPE_CHECKING:
    from callsheet.scheduler.store.migration_steps import Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlace:
    """Place of a scheduler's journal."""

    data_dir: DataDir
    database_url: DatabaseUrl = field(default=None, repr=False)


def migrate(place: JournalPlace, *, dry_run: bool) -> list[Taken]:
    """Brings a journal to this version's schema, or with `dry_run` only returns the steps to it.

    Raises:
        ValueError: The journal cannot be migrated; the text says why.
    """
    # Not above: the command line starts without the libraries of databases.
    from callsheet.scheduler.store.journal_errors import JournalError
    from callsheet.scheduler.store.migrations import migrate_stopped
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return migrate_stopped(place.data_dir, place.database_url, dry_run=dry_run)
    except (JournalError, SQLAlchemyError) as error:
        raise ValueError(str(error)) from error
