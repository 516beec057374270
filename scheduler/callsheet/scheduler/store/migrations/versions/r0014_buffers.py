"""Finished trajectories until a trainer acknowledges them, and the batches that are leased."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "buffered",
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("trajectory_id", sa.Text, nullable=False),
        sa.Column("group_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("policy_version", sa.BigInteger, nullable=False),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double, nullable=False),
        sa.Column("result", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("job_number", "trajectory_id", name="pk_buffered"),
    )
    op.create_table(
        "batches",
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("lease_s", sa.Double, nullable=False),
        sa.Column("policy_version", sa.BigInteger, nullable=False),
        sa.Column("acknowledged", sa.Integer, nullable=False),
        sa.Column("trajectory_ids", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_number", "batch_id", name="pk_batches"),
    )
