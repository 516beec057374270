"""What the predictors learned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "predictor_nodes",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("numbers", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_predictor_nodes"),
    )
