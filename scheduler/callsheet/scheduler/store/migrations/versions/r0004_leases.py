"""Leases of jobs, why trajectories were closed, what their commands take by default, and groups that were cancelled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("jobs", sa.Column("expired", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("lease_left", sa.Double))
    op.add_column("trajectories", sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")))
    for name, kind in (("command_timeout", sa.Double), ("group_cancelled", sa.Integer)):
        op.add_column("trajectories", sa.Column(name, kind, nullable=False, server_default=sa.text("0")))
