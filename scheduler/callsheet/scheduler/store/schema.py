"""The journal's tables.

`migrations/` creates them; this metadata is what the statements are built from, and a test compares the two.

An open job has a number, so that its rows do not repeat its id. Trajectories and actions have a surrogate id that grows
with their first commit: measured on SQLite it writes twice as many rows per second as a table clustered by
(job, action id), and it is the order in which a restarted scheduler wants them back.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# SQLite makes only a column of type INTEGER the row id itself.
_Identifier: Final = BigInteger().with_variant(Integer(), "sqlite")

scheduler: Final = Table(
    "scheduler",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("alive_at", Double),
    CheckConstraint("id = 1", name="single_row"),
)
"""One row: the epoch of the newest scheduler, and when one was last known to run."""

times_away: Final = Table(
    "times_away",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
)
"""When no scheduler ran, before each epoch whose actions that still concerns."""

jobs: Final = Table(
    "jobs",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("job_id", Text, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("expired", Integer, nullable=False, server_default=text("0")),
    Column("lease_left", Double),
    Column("begun_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("begun_sequence", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("job_id"),
)
"""The open jobs; `expired` is 0 or 1, and `lease_left` in seconds, null for all of them.

`begun_epoch` and `begun_sequence` are the newest token when a job was opened: its attempts have greater ones.
"""

closed_jobs: Final = Table(
    "closed_jobs",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
)
"""Numbers of closed jobs whose trajectories and actions are still to be deleted."""

trajectories: Final = Table(
    "trajectories",
    metadata,
    Column("id", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False),
    Column("trajectory_id", Text, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("sandbox_id", Text, nullable=False),
    Column("manager_id", Text, nullable=False),
    Column("held", Text, nullable=False),
    Column("held_cores", Text, nullable=False),
    Column("end", Text, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("command_timeout", Double, nullable=False, server_default=text("0")),
    Column("group_cancelled", Integer, nullable=False, server_default=text("0")),
    Column("had_sandbox", Integer, nullable=False, server_default=text("0")),
    Column("closed_at", Double),
    Column("died", Integer, nullable=False, server_default=text("0")),
    Column("began", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("job_number", "trajectory_id"),
)
"""Trajectories; `held` and `held_cores` are JSON, `command_timeout` is in seconds, `group_cancelled`,
`had_sandbox`, `died` and `began` are 0 or 1."""

# The two bodies come after them: SQLite then reads the short columns of a row without the pages its bodies overflow to.
# It needs none to read an empty `cancel_reason` either.
actions: Final = Table(
    "actions",
    metadata,
    Column("id", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False),
    Column("action_id", Text, nullable=False),
    Column("trajectory_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("manager_id", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("body_hash", LargeBinary, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("outcome", LargeBinary),
    Column("cancel_reason", Text, nullable=False, server_default=text("''")),
    Column("summary", Text),
    Column("copies_sandbox", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("job_number", "action_id"),
)
"""Actions. `outcome` and `summary` are null until there is one; `spec` is emptied then: nothing reads it any more."""

forgotten_actions: Final = Table(
    "forgotten_actions",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False, index=True),
    Column("entries", LargeBinary, nullable=False),
)
"""What stays of actions and trajectories whose rows are deleted while their job is open: entries of the core, many in a
row."""

closed_actions: Final = Table(
    "closed_actions",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("closed_at", Double, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("action_id", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
)
"""What is kept of the actions of closed jobs; the core says which."""

rollouts: Final = Table(
    "rollouts",
    metadata,
    Column("service", Text, primary_key=True),
    Column("job_number", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("begun", Integer, nullable=False),
    Column("plan", LargeBinary, nullable=False),
    Column("reference", LargeBinary, nullable=False),
)
"""The newest weights of each service that an open job published; `begun` is 0 or 1."""

buffered: Final = Table(
    "buffered",
    metadata,
    Column("job_number", BigInteger, primary_key=True, autoincrement=False),
    Column("trajectory_id", Text, primary_key=True),
    Column("group_id", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("finished_at", Double, nullable=False),
    Column("result", LargeBinary, nullable=False),
)
"""Finished trajectories that no trainer has acknowledged yet; `number` grows in each job."""

batches: Final = Table(
    "batches",
    metadata,
    Column("job_number", BigInteger, primary_key=True, autoincrement=False),
    Column("batch_id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("size", Integer, nullable=False),
    Column("lease_s", Double, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("acknowledged", Integer, nullable=False),
    Column("trajectory_ids", Text, nullable=False),
)
"""Batches that are leased, and the newest that were acknowledged; `trajectory_ids` is JSON, `acknowledged` 0 or 1."""

predictor_nodes: Final = Table(
    "predictor_nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("path", Text, nullable=False),
    Column("numbers", Text, nullable=False),
)
"""What the predictors learned: `name` is a hash of `path`; both others are JSON."""
