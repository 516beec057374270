"""The first tables: epoch, jobs, trajectories, actions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_identifier = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables and the row of the epoch."""
    scheduler = op.create_table(
        "scheduler",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_scheduler"),
        sa.CheckConstraint("id = 1", name=op.f("ck_scheduler_single_row")),
    )
    op.bulk_insert(scheduler, [{"id": 1, "epoch": 0}])
    op.create_table(
        "jobs",
        sa.Column("number", _identifier, autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("policy_version", sa.BigInteger, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
    )
    op.create_table(
        "closed_jobs",
        sa.Column("number", _identifier, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_closed_jobs"),
    )
    _create_trajectories()
    _create_actions()


def _create_trajectories() -> None:
    op.create_table(
        "trajectories",
        sa.Column("id", _identifier, autoincrement=False, nullable=False),
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("trajectory_id", sa.Text, nullable=False),
        sa.Column("policy_version", sa.BigInteger, nullable=False),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("manager_id", sa.Text, nullable=False),
        sa.Column("held", sa.Text, nullable=False),
        sa.Column("held_cores", sa.Text, nullable=False),
        sa.Column("end", sa.Text, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trajectories"),
        sa.UniqueConstraint("job_number", "trajectory_id", name="uq_trajectories_job_number_trajectory_id"),
    )


def _create_actions() -> None:
    op.create_table(
        "actions",
        sa.Column("id", _identifier, autoincrement=False, nullable=False),
        sa.Column("job_number", sa.BigInteger, nullable=False),
        sa.Column("action_id", sa.Text, nullable=False),
        sa.Column("trajectory_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("manager_id", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("body_hash", sa.LargeBinary, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_actions"),
        sa.UniqueConstraint("job_number", "action_id", name="uq_actions_job_number_action_id"),
    )
