"""PostgreSQL cleans up after rows that come and go all the time, before they are a fifth of their table."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"

_TABLES = ("actions", "trajectories", "forgotten_actions", "closed_actions", "closed_jobs", "jobs", "scheduler")


def upgrade() -> None:
    """Set the tables' own thresholds, and leave room for rows that change in place."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in _TABLES:
        settings = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000"
        if table in ("actions", "trajectories", "forgotten_actions", "closed_actions"):
            settings += ", toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 1000"
        if table in ("actions", "trajectories"):
            settings += ", fillfactor = 80"
        op.execute(f"ALTER TABLE {table} SET ({settings})")
