"""Summaries of finished actions, one short JSON list each in the journal's rows."""

from __future__ import annotations

import json
from dataclasses import fields
from operator import attrgetter
from typing import Final

from callsheet.scheduler.core.words.records import ActionSummary, ClosedAction
from callsheet.scheduler.store.column_types import encode_json
from callsheet.scheduler.store.schema import actions, closed_actions, jobs
from sqlalchemy import Connection, select

# The journal keeps them in this order; the ids have columns of their own, and the story comes last.
_values_of: Final = attrgetter(*(field.name for field in fields(ActionSummary)[2:-1]))
# Of a long story the end says the most.
_LAST_EVENTS: Final = 32


def encode_summary(summary: ActionSummary, *, with_story: bool) -> str:
    """The text of a summary; an open job's have no story, since every action would pay for it."""
    story = summary.story[-_LAST_EVENTS:] if with_story else []
    return encode_json((*_values_of(summary), story))


def decode_summary(job_id: str, action_id: str, text: str) -> ActionSummary:
    """The summary of a text."""
    values = json.loads(text)
    values[-1] = [(time, event) for time, event in values[-1]]
    return ActionSummary(job_id, action_id, *values)


def load_finished(connection: Connection, newest: int) -> tuple[ActionSummary, ...]:
    """Summaries of the newest finished actions of open jobs, by submit, the oldest first."""
    statement = (
        select(jobs.c.job_id, actions.c.action_id, actions.c.summary)
        .join(jobs, jobs.c.number == actions.c.job_number)
        .where(actions.c.summary.is_not(None))
        .order_by(actions.c.id.desc())
        .limit(newest)
    )
    rows = connection.execute(statement).all()
    return tuple(decode_summary(*row) for row in reversed(rows))


def load_closed(connection: Connection) -> tuple[ClosedAction, ...]:
    """Returns the kept summaries of closed jobs, the oldest first."""
    rows = connection.execute(select(closed_actions).order_by(closed_actions.c.number))
    return tuple(
        ClosedAction(row.number, row.closed_at, decode_summary(row.job_id, row.action_id, row.summary), row.reason)
        for row in rows
    )
