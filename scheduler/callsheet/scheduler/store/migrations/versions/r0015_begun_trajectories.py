"""Which trajectories were let begin, where no action that is kept tells."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trajectories", sa.Column("began", sa.Integer, nullable=False, server_default=sa.text("0")))
