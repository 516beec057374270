"""The tables of call records."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Double, Index, Integer, MetaData, String, Table, Text

VERSION: Final = "4"
"""Version of these tables; a database of another version is refused."""

METADATA: Final = MetaData()

facts = Table(
    "gateway_facts",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""The tables' version, and the secret of keys."""

closed_trajectories = Table(
    "gateway_closed_trajectories",
    METADATA,
    Column("job_id", String(256), primary_key=True),
    # Of the job, as the scheduler tells it: one that is opened anew under the id of a closed job is another one.
    Column("life", String(64), primary_key=True),
    Column("trajectory_id", String(256), primary_key=True),
    # Seconds since 1970 when it was first seen closed.
    Column("closed_at", Double, nullable=False),
)

calls = Table(
    "gateway_calls",
    METADATA,
    Column("job_id", String(256), primary_key=True),
    # Of the job, as the scheduler tells it: one that is opened anew under the id of a closed job is another one.
    Column("life", String(64), primary_key=True),
    Column("trajectory_id", String(256), primary_key=True),
    # Place among the trajectory's calls, in the order in which they began.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("action_id", String(256), nullable=False),
    Column("begun_at", Double, nullable=False),
    # Of `action` or `record`.
    Column("size", Integer, nullable=False),
    # Its prompt and its sampling, so that a retry submits the same action; none once it has a turn.
    Column("action", Text),
    # Its turn and the turn's record, once it is done.
    Column("turn", Integer),
    Column("record", Text),
    Index("gateway_calls_begun_at", "begun_at"),
    # All that a look at the room that is taken reads.
    Index("gateway_calls_size", "job_id", "life", "trajectory_id", "size"),
)
