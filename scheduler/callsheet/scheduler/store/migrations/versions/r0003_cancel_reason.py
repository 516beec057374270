"""Why an action that runs was cancelled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("actions", sa.Column("cancel_reason", sa.Text, nullable=False, server_default=sa.text("''")))
