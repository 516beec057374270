"""The newest weights of services that open jobs published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "rollouts",
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("begun", sa.Integer, nullable=False),
        sa.Column("plan", sa.LargeBinary, nullable=False),
        sa.Column("reference", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("service", name="pk_rollouts"),
    )
