"""How Alembic runs a migration: on the connection that the journal opened, one transaction per migration."""

from __future__ import annotations

from alembic import context
from callsheet.scheduler.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
    # Alembic assumes that SQLite cannot roll back the definition of a table. It can, where BEGIN is explicit.
    transactional_ddl=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
