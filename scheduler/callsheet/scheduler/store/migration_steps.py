"""Steps from each schema of the journal to the next.

A step names all columns that it makes, since the tables of `schema` change with later schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Column, Double, Text

if TYPE_CHECKING:
    from alembic.operations import Operations


def add_incarnations(operations: Operations) -> None:
    """Gives actions the incarnation of their manager; see `UNKNOWN` of the core."""
    # In a copy the new column is before the bodies of a row; see `schema.actions`.
    copies = operations.get_context().dialect.name == "sqlite"
    with operations.batch_alter_table("actions", recreate="always" if copies else "never") as actions:
        new = Column("incarnation", Text, nullable=False, server_default="")
        actions.add_column(new, insert_after="manager_id" if copies else None)
    if not copies:
        operations.alter_column("actions", "incarnation", server_default=None)


def add_drains(operations: Operations) -> None:
    """Makes the table of drains."""
    operations.create_table(
        "drains",
        Column("manager_id", Text, primary_key=True),
        Column("incarnation", Text, nullable=False),
        Column("leaves_by", Double, nullable=False),
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_vacuum_threshold": 1000},
    )


@dataclass(frozen=True, slots=True)
class Migration:
    """A change from one schema to the next.

    Attributes:
        before: Name of the schema that it starts from.
        after: Name of the schema that it makes.
        does: A sentence for people.
        table: The table all of whose rows change; empty if no row does.
        change: Makes the change.
    """

    before: str
    after: str
    does: str
    table: str
    change: Callable[[Operations], None]


class Taken(NamedTuple):
    """A step that was taken, or would be; `rows` is the number of rows that it changes."""

    before: str
    after: str
    does: str
    rows: int
