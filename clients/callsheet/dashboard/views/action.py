"""One action: where it is and why, its story, and what was asked for it."""

from __future__ import annotations

from typing import Any, Final

from callsheet.client.errors import NotFoundError
from callsheet.dashboard.blocks import Cell, Facts, Notice, Table, View, WebForm, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.stuck import client_sentence, shortage_blocks, since
from callsheet.dashboard.words import clock_time, duration, kind_name, number, seconds_of, state_name, wait_name
from callsheet.v1 import admin_service_pb2, client_service_pb2, common_pb2, job_pb2

_OVER: Final = frozenset(
    {
        admin_service_pb2.ACTION_STATE_SUCCEEDED,
        admin_service_pb2.ACTION_STATE_FAILED,
        admin_service_pb2.ACTION_STATE_CANCELLED,
        admin_service_pb2.ACTION_STATE_EXPIRED,
    }
)
_SENTENCE: Final = 2000
_EVENTS: Final = 200


async def look(asked: Asked) -> View:
    """Asks for the whole story of an action."""
    key = common_pb2.ActionKey(job_id=asked.of("job"), action_id=asked.of("action"))
    told = await asked.source.explain(admin_service_pb2.ExplainRequest(key=key))
    try:
        jobs = await asked.source.list_jobs(client_service_pb2.ListJobsRequest(job_id=told.key.job_id))
    except NotFoundError:
        return action_view(told, None, asked.now, offers_acts=False)
    return action_view(told, jobs.jobs[0] if jobs.jobs else None, asked.now, offers_acts=asked.viewer.is_offered_acts)


def action_view(
    told: admin_service_pb2.ExplainResponse, job: job_pb2.JobStatus | None, now: float, *, offers_acts: bool
) -> View:
    """Returns the page."""
    over = told.state in _OVER
    facts: list[tuple[str, Cell | str]] = [
        ("job", link("job", job=told.key.job_id)),
        ("kind", kind_name(told.kind)),
        ("state", state_name(told.state)),
    ]
    if told.trajectory_id:
        facts.append(("trajectory", link("trajectory", job=told.key.job_id, trajectory=told.trajectory_id)))
    if told.wait_reason:
        facts.append(("waits for", wait_name(told.wait_reason)))
    if told.story and not over:
        facts.append(("submitted ago", duration(now - since(told))))
    blocks: list[Any] = [Notice(plain_line(told.explanation, _SENTENCE), "" if over else "bad"), Facts(facts)]
    blocks += shortage_blocks(told)
    if not over:
        blocks.append(Notice(client_sentence(job)))
    if told.HasField("expected"):
        blocks.append(_expected(told.expected))
    blocks.append(_story(told, now))
    if offers_acts and not over:
        hidden = {"job": told.key.job_id, "action": told.key.action_id}
        blocks.append(WebForm("/cancel", "Cancel this action\N{HORIZONTAL ELLIPSIS}", hidden=hidden))
    trail = (link("job", job=told.key.job_id),)
    state = state_name(told.state)
    return View(plain_line(told.key.action_id), blocks, f"The action is {state}.", 0 if over else 3, trail)


def _expected(expected: admin_service_pb2.ExpectedRun) -> Table:
    rows = [
        (
            "execution",
            count(duration(expected.mean_s)),
            f"{duration(expected.low_s)} to {duration(expected.high_s)} in eight of ten",
        ),
        ("cores that it uses", count(number(expected.use)), ""),
        ("memory, MB", count(number(expected.peak_memory_mb)), "one in twenty exceeds it"),
        ("runs behind this", count(number(expected.observations)), "older ones counted less"),
    ]
    return Table("What it is expected to need, at its fewest units", ("what", "mean", "and"), rows)


def _story(told: admin_service_pb2.ExplainResponse, now: float) -> Table:
    rows, before = [], None
    for event in told.story[:_EVENTS]:
        at = seconds_of(event.time)
        later = count("" if before is None else f"+{duration(at - before)}")
        rows.append((clock_time(at), later, plain_line(event.event, _SENTENCE)))
        before = at
    hidden = len(told.story) - len(rows)
    more = Cell(f"{number(hidden)} later events are not shown") if hidden > 0 else None
    return Table("Story", ("at (UTC)", "after", "event"), rows, "nothing is kept of it", more)
