"""When trajectories were closed, so that they are forgotten some time after that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trajectories", sa.Column("closed_at", sa.Double))
