"""Which trajectories lost their sandbox as it died under a command."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trajectories", sa.Column("died", sa.Integer, nullable=False, server_default=sa.text("0")))
