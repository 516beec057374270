"""Brings the journal's tables to the version of this program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from callsheet.scheduler.store.errors import JournalVersionError
from sqlalchemy import Connection

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_log = structlog.get_logger(__name__)


def migrate(connection: Connection) -> None:
    """Run the migrations that the database lacks, each in a transaction of its own.

    The caller holds the lock of the data directory or database, so no other scheduler does the same.

    Raises:
        JournalVersionError: The database has a revision that this program does not know.
    """
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    with connection.begin():
        current = MigrationContext.configure(connection).get_current_revision()
    head = scripts.get_current_head()
    if current == head:
        return
    if current is not None and current not in known:
        raise JournalVersionError(
            f"the journal's schema is at revision {current!r}, and this program knows revisions up to {head!r}:"
            " start the newer Callsheet that wrote it"
        )
    command.upgrade(config, "head")
    _log.info("journal_migrated", from_revision=current, to_revision=head)
