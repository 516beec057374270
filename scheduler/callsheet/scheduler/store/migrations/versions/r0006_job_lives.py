"""Since which token a job is open, so that attempts of an earlier job of its id are told apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    for name in ("begun_epoch", "begun_sequence"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")))
