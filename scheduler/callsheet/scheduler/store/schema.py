"""The journal's tables as they are today; `migrations` makes them, and brings those of an earlier schema to these.

An open job has a number, so that its rows do not repeat its id. Trajectories and actions have a surrogate id that grows
with their first commit: measured on SQLite it writes twice as many rows per second as a table clustered by
(job, action id), and it is the order in which a restarted scheduler wants them back.

A column's default is the value that a new row has if its record names none; without a default it is null.
"""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.store.column_types import AccountText, Json, OthersText
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA: Final = "journal-5"
"""Name of these tables and of the meaning of their rows. A change of either takes a new name and a migration."""

QUEUED: Final = "queued"
"""State of an action that waits for its next attempt."""

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# Of tables whose rows come and go all the time: PostgreSQL cleans up before those are a fifth of the table, and leaves
# room for rows that change in place.
_CHANGING: Final = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_vacuum_threshold": 1000}
_LARGE: Final = {**_CHANGING, **{f"toast.{name}": value for name, value in _CHANGING.items()}}
_IN_PLACE: Final = {**_LARGE, "fillfactor": 80}

# SQLite makes only a column of type INTEGER the row id itself.
_Identifier: Final = BigInteger().with_variant(Integer(), "sqlite")

journal_schema: Final = Table("journal_schema", metadata, Column("name", Text, primary_key=True))
"""One row: the schema of these tables."""

scheduler: Final = Table(
    "scheduler",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("alive_at", Double),
    CheckConstraint("id = 1", name="single_row"),
    postgresql_with=_CHANGING,
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
    Column("policy_version", BigInteger, nullable=False, default=0),
    Column("spec", LargeBinary, nullable=False),
    Column("expired", Boolean, nullable=False, default=False),
    Column("lease_left", Double),
    Column("begun_epoch", BigInteger, nullable=False),
    Column("begun_sequence", BigInteger, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("cost", AccountText),
    UniqueConstraint("job_id"),
    postgresql_with=_CHANGING,
)
"""The open jobs; `lease_left` is in seconds, null for all of them.

`begun_epoch` and `begun_sequence` are the newest token when a job was opened: its attempts have greater ones.
"""

closed_jobs: Final = Table(
    "closed_jobs",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("job_id", Text, nullable=False, index=True),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("cost", Json, nullable=False),
    Index(None, "closed_at", "number"),
    postgresql_with=_CHANGING,
)
"""Closed jobs: the newest, and those that have other rows: some are kept, the rest is still to be deleted.

A cost is what was held and what was used.
"""

trajectories: Final = Table(
    "trajectories",
    metadata,
    Column("id", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False),
    Column("trajectory_id", Text, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("began", Boolean, nullable=False, default=False),
    Column("sandbox_id", OthersText, nullable=False, default=""),
    Column("manager_id", Text, nullable=False, default=""),
    Column("held", Json, nullable=False, default="{}"),
    Column("held_cores", Json, nullable=False, default="[]"),
    Column("had_sandbox", Boolean, nullable=False, default=False),
    Column("died", Boolean, nullable=False, default=False),
    Column("command_timeout", Double, nullable=False, default=0.0),
    Column("group_cancelled", Boolean, nullable=False, default=False),
    Column("end", Text, nullable=False, default=""),
    Column("reason", OthersText, nullable=False, default=""),
    Column("closed_at", Double),
    Column("group_id", Text, nullable=False),
    Column("reward", Double),
    Column("cost", AccountText),
    Column("spec", LargeBinary, nullable=False),
    UniqueConstraint("job_number", "trajectory_id"),
    Index(None, "job_number", "policy_version", "id"),
    postgresql_with=_IN_PLACE,
)
"""Trajectories; `command_timeout` is in seconds, `reward` null until there is one. The index is for their history."""

Index(
    None,
    trajectories.c.job_number,
    trajectories.c.group_id,
    sqlite_where=trajectories.c.group_id != "",
    postgresql_where=trajectories.c.group_id != "",
)

# The two bodies come last: SQLite then reads the short columns of a row without the pages its bodies overflow to.
actions: Final = Table(
    "actions",
    metadata,
    Column("id", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False),
    Column("action_id", Text, nullable=False),
    Column("trajectory_id", Text, nullable=False),
    Column("kind", Integer, nullable=False),
    Column("state", Text, nullable=False, default=QUEUED),
    Column("attempt", Integer, nullable=False, default=0),
    Column("epoch", BigInteger, nullable=False, default=0),
    Column("sequence", BigInteger, nullable=False, default=0),
    Column("manager_id", Text, nullable=False, default=""),
    Column("incarnation", Text, nullable=False, default=""),
    Column("submitted_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("body_hash", LargeBinary, nullable=False),
    Column("copies_sandbox", Boolean, nullable=False),
    Column("cancel_reason", OthersText, nullable=False, default=""),
    Column("summary", Text),
    Column("spec", LargeBinary, nullable=False),
    Column("outcome", LargeBinary),
    UniqueConstraint("job_number", "action_id"),
    Index(None, "job_number", "trajectory_id", "id", "kind"),
    postgresql_with=_IN_PLACE,
)
"""Actions. `outcome` and `summary` are null until there is one; then `spec` is emptied, unless it is short.

The index is for their history. None of its columns ever changes.
"""

forgotten_actions: Final = Table(
    "forgotten_actions",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("job_number", BigInteger, nullable=False, index=True),
    Column("entries", LargeBinary, nullable=False),
    postgresql_with=_LARGE,
)
"""Remains of actions and trajectories whose rows are deleted while their job is open. A row has many of them."""

closed_actions: Final = Table(
    "closed_actions",
    metadata,
    Column("number", _Identifier, primary_key=True, autoincrement=False),
    Column("closed_at", Double, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("action_id", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("reason", Text, nullable=False),
    postgresql_with=_LARGE,
)
"""Summaries of the actions of closed jobs; the core decides which are kept."""

rollouts: Final = Table(
    "rollouts",
    metadata,
    Column("job_number", BigInteger, primary_key=True, autoincrement=False),
    Column("service", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("begun", Boolean, nullable=False, default=False),
    Column("plan", LargeBinary, nullable=False),
    Column("reference", LargeBinary, nullable=False, default=b""),
)
"""The newest weights of each service that an open job published."""

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
    Column("acknowledged", Boolean, nullable=False),
    Column("trajectory_ids", Json, nullable=False),
)
"""Batches that are leased, and the newest that were acknowledged or went back, which have no trajectories."""

drains: Final = Table(
    "drains",
    metadata,
    Column("manager_id", Text, primary_key=True),
    Column("incarnation", Text, nullable=False),
    Column("leaves_by", Double, nullable=False),
    postgresql_with=_CHANGING,
)
"""Managers that were asked to leave; `leaves_by` is infinite for one that leaves once its last sandbox has ended."""

predictor_nodes: Final = Table(
    "predictor_nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("path", Text, nullable=False),
    Column("numbers", Text, nullable=False),
)
"""Learned durations and held memory: `name` is a hash of `path`, and both other columns are JSON.

A cache: a scheduler works without its rows, which are written now and then.
"""

KEYS: Final[dict[Table, tuple[str, ...]]] = {
    jobs: ("number",),
    trajectories: ("job_number", "trajectory_id"),
    actions: ("job_number", "action_id"),
    rollouts: ("job_number", "service"),
    buffered: ("job_number", "trajectory_id"),
    batches: ("job_number", "batch_id"),
    forgotten_actions: ("job_number", "number"),
    closed_jobs: ("number",),
    closed_actions: ("number",),
    drains: ("manager_id",),
    times_away: ("epoch",),
}
"""The tables that records change, with the columns that name a row."""
