"""The oldest waiting and hanging actions: what is short, who holds it, since when, and whether clients are alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
from callsheet.client.errors import NotFoundError
from callsheet.dashboard.blocks import Cell, Notice, PageSection, Row, Table, View, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.jobs_seen import OldestActions, oldest_actions, seen
from callsheet.dashboard.words import duration, kind_name, number, seconds_of, units, wait_name
from callsheet.v1 import admin_service_pb2, common_pb2, job_pb2

Explained = admin_service_pb2.ExplainResponse
_QUEUED: Final = admin_service_pb2.ACTION_STATE_QUEUED
_EXPLAINED: Final = 3
_LISTED: Final = 25
_HOLDERS: Final = 10
_SENTENCE: Final = 600
_LONG_S: Final = 60.0


async def look(asked: Asked) -> View:
    """Asks for the oldest open actions of all jobs, or of the one in the query, and for whole stories of a few."""
    jobs = (await seen(asked)).jobs
    wanted = asked.of("job")
    chosen = [job for job in jobs if not wanted or job.spec.job_id == wanted]
    found = await oldest_actions(asked, chosen)
    waiting, hanging = oldest(found.actions)
    stories: dict[tuple[str, str], Explained] = {}

    async def ask(key: common_pb2.ActionKey) -> None:
        try:
            stories[key.job_id, key.action_id] = await asked.source.explain(admin_service_pb2.ExplainRequest(key=key))
        except NotFoundError:
            return  # It was forgotten since.

    async with anyio.create_task_group() as tasks:
        for each in (*waiting[:_EXPLAINED], *hanging[:_EXPLAINED]):
            tasks.start_soon(ask, each.key)
    return stuck_view(found, stories, {job.spec.job_id: job for job in jobs}, asked.now)


def oldest(actions: Iterable[Explained]) -> tuple[list[Explained], list[Explained]]:
    """Returns actions that wait and actions that run, the oldest of each first."""
    ordered = sorted(actions, key=since)
    waiting = [each for each in ordered if each.state == _QUEUED]
    return waiting, [each for each in ordered if each.state != _QUEUED]


def since(action: Explained) -> float:
    """Returns when an action was submitted, in seconds since 1970; 0 where that is not told."""
    return seconds_of(action.story[0].time) if action.story else 0.0


def stuck_view(
    found: OldestActions,
    stories: Mapping[tuple[str, str], Explained],
    jobs: Mapping[str, job_pb2.JobStatus],
    now: float,
) -> View:
    """Returns the page.

    Args:
        found: The oldest open actions.
        stories: What Explain says of some of them, by job and action.
        jobs: By id.
        now: Seconds since 1970.
    """
    waiting, hanging = oldest(found.actions)
    blocks: list[Any] = []
    if not found.actions:
        blocks.append(Notice("Nothing waits and nothing runs.", "good", (Cell("What there is now", "/now"),)))
    cases = [
        _case(stories[each.key.job_id, each.key.action_id], jobs, now)
        for each in waiting[:_EXPLAINED]
        if (each.key.job_id, each.key.action_id) in stories
    ]
    if cases:
        blocks.append(PageSection("Waiting longest", cases))
    if waiting:
        blocks.append(_table("Actions that wait, the oldest first", waiting, now))
    if hanging:
        blocks.append(PageSection("Under way longest", [_hanging_table(hanging, stories, jobs, now)]))
    if found.left_out:
        blocks.append(Notice(f"{number(found.left_out)} more open actions are younger, or of jobs with fewer of them."))
    long = [each for each in waiting if now - since(each) > _LONG_S]
    summary = f"{number(len(long))} of the oldest actions wait for more than a minute."
    return View("Stuck", blocks, summary)


def _case(told: Explained, jobs: Mapping[str, job_pb2.JobStatus], now: float) -> PageSection:
    """One action that waits, with all that keeps it waiting."""
    key = told.key
    facts = f"{kind_name(told.kind)} of {plain_line(key.job_id)}, waits for {duration(now - since(told))}"
    return PageSection(
        link("action", job=key.job_id, action=key.action_id),
        (
            Notice(f"{facts}: {plain_line(told.explanation, _SENTENCE)}", "bad"),
            *shortage_blocks(told),
            Notice(client_sentence(jobs.get(key.job_id))),
        ),
    )


def shortage_blocks(told: Explained) -> Sequence[Any]:
    """Returns what an action lacks, and who holds it."""
    blocks: list[Any] = []
    if told.shortages:
        rows: list[Row] = [
            (plain_line(each.resource), *map(_amount, (each.needed, each.free, each.capacity)), _node(each.node_id))
            for each in told.shortages
        ]
        blocks.append(Table("What is short", ("resource", "needed", "free", "there are", "node"), rows))
    if told.holders:
        rows = [_holder_row(each) for each in told.holders[:_HOLDERS]]
        blocks.append(Table("Who holds it", ("holder", "job", "holds", "for", "node", "its client"), rows))
    return blocks


def _holder_row(holder: admin_service_pb2.Holder) -> Sequence[Cell | str]:
    if not holder.job_id:
        return ("another job", "", units(holder.units), duration(holder.held_s), plain_line(holder.node_id), "not told")
    if holder.action_id:
        who = link("action", job=holder.job_id, action=holder.action_id)
    else:
        who = link("trajectory", job=holder.job_id, trajectory=holder.trajectory_id)
    expires = holder.expires_in_s if holder.HasField("expires_in_s") else None
    alive = _alive(holder.sessions, expires)
    job = link("job", job=holder.job_id)
    return (who, job, units(holder.units), duration(holder.held_s), _node(holder.node_id), alive)


def client_sentence(job: job_pb2.JobStatus | None) -> str:
    """Returns whether the client of a job is alive, as a sentence."""
    if job is None:
        return "Its job is not open."
    expires = job.expires_in.seconds if job.HasField("expires_in") else None
    return f"Its client: {_alive(job.sessions, expires).text}."


def _alive(sessions: int, expires_in_s: float | None) -> Cell:
    if sessions:
        return Cell(f"alive ({number(sessions)} session{'s' if sessions > 1 else ''})", tone="good")
    if expires_in_s is not None:
        return Cell(f"away; its job expires in {duration(expires_in_s)}", tone="bad")
    return Cell("away; its job is detached and does not expire", tone="quiet")


def _table(caption: str, actions: Sequence[Explained], now: float) -> Table:
    rows = [
        (
            link("action", job=each.key.job_id, action=each.key.action_id),
            link("job", job=each.key.job_id),
            kind_name(each.kind),
            count(duration(now - since(each))),
            wait_name(each.wait_reason),
            plain_line(each.explanation, _SENTENCE),
        )
        for each in actions[:_LISTED]
    ]
    more = Cell(f"{len(actions) - _LISTED} more of the oldest are not shown") if len(actions) > _LISTED else None
    return Table(caption, ("action", "job", "kind", "for", "reason", "why"), rows, more=more)


def _hanging_table(
    actions: Sequence[Explained],
    stories: Mapping[tuple[str, str], Explained],
    jobs: Mapping[str, job_pb2.JobStatus],
    now: float,
) -> Table:
    rows = []
    for each in actions[:_LISTED]:
        key = each.key
        told = stories.get((key.job_id, key.action_id))
        rows.append(
            (
                link("action", job=key.job_id, action=key.action_id),
                link("job", job=key.job_id),
                kind_name(each.kind),
                count(duration(now - since(each))),
                _expectation(told, now) if told is not None else "",
                plain_line(each.explanation, _SENTENCE),
                client_sentence(jobs.get(key.job_id)).removeprefix("Its client: ").removesuffix("."),
            )
        )
    columns = ("action", "job", "kind", "submitted ago", "against expectation", "state", "its client")
    return Table("Actions under way, the oldest first", columns, rows)


def _expectation(told: Explained, now: float) -> Cell:
    """Returns a cell that shows if an action has run for longer than nine in ten of its kin."""
    if not told.HasField("expected") or not told.story:
        return Cell("")
    runs, high = now - seconds_of(told.story[-1].time), told.expected.high_s
    if runs > high:
        return Cell(f"hangs: {duration(runs)}; nine in ten take {duration(high)} at most", tone="bad")
    return Cell(f"{duration(runs)}; nine in ten take {duration(high)} at most", tone="good")


def _amount(value: int) -> Cell:
    return count(number(value))


def _node(node_id: str) -> Cell:
    return Cell(plain_line(node_id), "/now" if node_id else "")
