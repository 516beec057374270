"""Why the jobs of closed actions were closed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column."""
    op.add_column("closed_actions", sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")))
