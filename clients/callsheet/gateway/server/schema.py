"""The tables of call records."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, PrimaryKeyConstraint, String, Table, Text

VERSION: Final = 2
"""Of these tables. One of version 1 is brought to it; a database of another version is refused."""

METADATA: Final = MetaData()

facts = Table(
    "gateway_facts",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""The tables' version, and the secret of keys."""

trajectories = Table(
    "gateway_trajectories",
    METADATA,
    Column("job_id", String(256), nullable=False),
    Column("trajectory_id", String(256), nullable=False),
    # Seconds since 1970 when it was first seen closed; none while it is open.
    Column("closed_at", Double),
    # Of the records and replies of its calls.
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("job_id", "trajectory_id"),
)

calls = Table(
    "gateway_calls",
    METADATA,
    Column("job_id", String(256), nullable=False),
    Column("trajectory_id", String(256), nullable=False),
    # Place among the trajectory's calls, in the order in which they began.
    Column("number", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    # Counts calls with this digest that are no retries, from 1.
    Column("ordinal", Integer, nullable=False),
    Column("action_id", String(256), nullable=False),
    # Turns of the conversation when its prompt was settled.
    Column("turns_before", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("begun_at", Double, nullable=False),
    # Of a done one: its turn and the turn's record, and the reply that was given.
    Column("turn", Integer),
    Column("record", Text),
    Column("reply", Text),
    # Of one that has begun: its prompt and its sampling, so that a retry submits the same action.
    Column("action", Text),
    PrimaryKeyConstraint("job_id", "trajectory_id", "number"),
    Index("gateway_calls_begun_at", "begun_at"),
)
