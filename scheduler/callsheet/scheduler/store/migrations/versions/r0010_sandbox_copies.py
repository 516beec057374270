"""Which trajectories had a sandbox, and which actions run in a copy of one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns."""
    for table, name in (("trajectories", "had_sandbox"), ("actions", "copies_sandbox")):
        op.add_column(table, sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0")))
