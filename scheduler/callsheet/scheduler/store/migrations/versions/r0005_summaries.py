"""Summaries of finished actions, and those of closed jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column and the table."""
    op.add_column("actions", sa.Column("summary", sa.Text))
    op.create_table(
        "closed_actions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("closed_at", sa.Double, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("action_id", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_closed_actions"),
    )
