"""Actions that are forgotten while their job is open, and when no scheduler ran."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column and the tables."""
    op.add_column("scheduler", sa.Column("alive_at", sa.Double))
    op.create_table(
        "times_away",
        sa.Column("epoch", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_times_away"),
    )
    op.create_table(
        "forgotten_actions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("entries", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_forgotten_actions"),
    )
    op.create_index("ix_forgotten_actions_job_number", "forgotten_actions", ["job_number"])
