"""A trajectory: its time-line of generating, environment, reward and waiting, its cost, and what was said in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import anyio
from callsheet.client.errors import RefusalCode, RefusedError, refused
from callsheet.dashboard.blocks import (
    Cell,
    Facts,
    Gantt,
    LaneBar,
    Notice,
    Output,
    PageSection,
    Table,
    View,
    count,
    link,
)
from callsheet.dashboard.plain_text import MOST_CHARACTERS, PlainText, plain_line, plain_text
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.past import (
    Past,
    PastTrajectory,
    bars_of,
    cost_table,
    end_of,
    lifetime,
    phase_of,
    reward_of,
    times_of,
)
from callsheet.dashboard.words import (
    NOTHING,
    clock_time,
    duration,
    enum_name,
    kind_name,
    number,
    seconds_of,
    state_name,
)
from callsheet.v1 import admin_service_pb2, common_pb2, outcome_pb2, payload_service_pb2

_MOST: Final = 500
_WITH_CONTENTS: Final = 40
_MOST_STORED: Final = 20
_PHASES: Final = ("generate", "env", "tool", "reward")


async def look(asked: Asked) -> View:
    """Asks for a trajectory and its actions; for contents where they are wanted.

    Raises:
        RefusedError: NOT_FOUND: the job has, or had, no such trajectory that is kept.
    """
    job, name, after = asked.of("job"), asked.of("trajectory"), asked.of("after")
    found = await asked.source.list_trajectory_history(
        admin_service_pb2.ListTrajectoryHistoryRequest(job_id=job, trajectory_ids=[name])
    )
    if not found.trajectories:
        raise refused(RefusalCode.NOT_FOUND, field="trajectory", value=name[:200], rule="is not kept, or never was")
    reads_contents = asked.viewer.reads_contents
    contents = reads_contents and bool(asked.of("contents"))
    request = admin_service_pb2.ListActionHistoryRequest(
        job_id=job,
        trajectory_ids=[name],
        page_size=_WITH_CONTENTS if contents else _MOST,
        page_token=after,
        contents=contents,
    )
    actions = await asked.source.list_action_history(request)
    prices = (await asked.source.get_server_info()).prices
    stored = await _stored(asked, actions.actions)
    trajectory, now = found.trajectories[0], asked.now
    return trajectory_view(
        job, trajectory, actions, after=after, prices=prices, now=now, stored=stored, reads_contents=reads_contents
    )


async def _stored(asked: Asked, actions: Iterable[Past]) -> dict[str, bytes]:
    """The beginnings of the first outputs that are in the payload store, as far as the viewer may read them."""
    blobs = (blob for each in actions if each.HasField("outcome") for blob in _blobs_of(each.outcome))
    wanted = {each.reference.sha256: each.reference for each in blobs if each.HasField("reference")}
    found: dict[str, bytes] = {}

    async def ask(reference: common_pb2.PayloadReference) -> None:
        request = payload_service_pb2.GetPayloadRequest(reference=reference)
        with suppress(RefusedError):
            found[reference.sha256] = (await asked.source.get_payload(request)).chunk[: 8 * MOST_CHARACTERS]

    async with anyio.create_task_group() as tasks:
        for reference in islice(wanted.values(), _MOST_STORED):
            tasks.start_soon(ask, reference)
    return found


def trajectory_view(
    job: str,
    trajectory: PastTrajectory,
    told: admin_service_pb2.ListActionHistoryResponse,
    *,
    after: str = "",
    prices: Mapping[str, float],
    now: float,
    stored: Mapping[str, bytes],
    reads_contents: bool,
) -> View:
    """Returns the page.

    Args:
        job: Its job.
        trajectory: What became of it.
        told: Its actions.
        after: Where the page of actions before ended; empty for the first page.
        prices: Money for one unit, by resource.
        now: Seconds since 1970.
        stored: The beginnings of stored bytes, by their SHA-256.
        reads_contents: Whether the viewer may ask for contents.
    """
    name, actions, start = trajectory.trajectory_id, told.actions, seconds_of(trajectory.opened)
    has_contents = any(each.HasField("spec") or each.HasField("outcome") for each in actions)
    shown, following = "1" if has_contents else "", told.next_page_token
    more = link("trajectory", "Later actions", job=job, trajectory=name, after=following, contents=shown)
    is_part = bool(after or following)
    blocks: list[Any] = [_facts(job, trajectory, now)]
    if trajectory.reason:
        blocks.append(Notice(f"Why it ended: {plain_line(trajectory.reason, 500)}"))
    blocks += [
        _time_line(actions, start, now),
        _phases(actions, now, is_part=is_part),
        cost_table("What it cost", trajectory.cost, prices),
        _actions(actions, now, more if following else None),
    ]
    if not reads_contents:
        blocks.append(Notice("Commands and outputs are for a token of the job, or of scope admin."))
    elif has_contents:
        blocks.append(PageSection("Commands and outputs", [_contents(each, stored) for each in actions]))
    else:
        show = link("trajectory", "Show commands and outputs", job=job, trajectory=name, after=after, contents="1")
        blocks.append(Notice("", links=(show,)))
    over = trajectory.HasField("closed") or has_contents
    trail = (link("job", job=job), link("trajectories", "Trajectories", job=job))
    summary = (
        f"{number(len(actions))} of its actions are shown." if is_part else f"It has {number(len(actions))} actions."
    )
    return View(plain_line(name), blocks, summary, 0 if over else 3, trail)


def _facts(job: str, trajectory: PastTrajectory, now: float) -> Facts:
    reward, version = reward_of(trajectory), str(trajectory.policy_version)
    return Facts(
        (
            ("state", end_of(trajectory)),
            ("group", link("group", job=job, group=trajectory.group_id) if trajectory.group_id else NOTHING),
            ("version at its beginning", Cell(version, link("step", job=job, version=version).href)),
            ("reward", NOTHING if reward is None else number(reward)),
            ("opened (UTC)", clock_time(seconds_of(trajectory.opened))),
            ("lived", duration(lifetime(trajectory, now))),
            ("task", plain_line(trajectory.task) or NOTHING),
            ("sandbox on", plain_line(trajectory.node_id) or NOTHING),
        )
    )


def _time_line(actions: Sequence[Past], start: float, now: float) -> Gantt:
    lanes: dict[str, list[LaneBar]] = {phase: [] for phase in (*_PHASES, "waiting")}
    for each in actions:
        wait, run = bars_of(each, start, now)
        lanes["waiting"].append(wait)
        lanes[phase_of(each)].append(run)
    end = max((times_of(each, now)[2] for each in actions), default=start)
    return Gantt("Time-line", [(name, bars) for name, bars in lanes.items() if bars], max(end - start, 1e-3))


def _phases(actions: Sequence[Past], now: float, *, is_part: bool) -> Table:
    rows = []
    for phase in _PHASES:
        found = [(each, times_of(each, now)) for each in actions if phase_of(each) == phase]
        if found:
            waited = sum(began - submitted for _, (submitted, began, _) in found)
            ran = sum(ended - began for _, (_, began, ended) in found)
            tokens = sum(each.output_tokens for each, _ in found)
            row = (count(number(len(found))), count(duration(ran)), count(duration(waited)), count(number(tokens)))
            rows.append((phase, *row))
    caption = "Where the time of the actions below went" if is_part else "Where its time went"
    return Table(caption, ("phase", "actions", "ran", "waited", "tokens made"), rows, "it has no action")


def _actions(actions: Sequence[Past], now: float, more: Cell | None) -> Table:
    rows = []
    for each in actions:
        submitted, began, ended = times_of(each, now)
        versions = "-".join(dict.fromkeys(str(span.version) for span in each.policy_versions))
        why = " ".join(filter(None, (_failure(each), each.reason)))
        rows.append(
            (
                link("action", job=each.key.job_id, action=each.key.action_id),
                kind_name(each.kind),
                Cell(state_name(each.state), tone="bad" if each.failure else ""),
                count(clock_time(submitted)),
                count(duration(began - submitted)),
                count(duration(ended - began)),
                count(versions or NOTHING),
                count(number(each.output_tokens) if each.output_tokens else NOTHING),
                count(number(each.score) if each.HasField("score") else NOTHING),
                link("manager", manager=each.manager_id) if each.manager_id else NOTHING,
                plain_line(why, 300),
            )
        )
    columns = (
        "action",
        "kind",
        "state",
        "submitted (UTC)",
        "waited",
        "ran",
        "versions",
        "tokens",
        "score",
        "on",
        "why",
    )
    return Table("Actions", columns, rows, "it has no action", more)


def _failure(action: Past) -> str:
    return enum_name(outcome_pb2.FailureKind, action.failure, "").upper()


def _contents(action: Past, stored: Mapping[str, bytes]) -> PageSection:
    """Returns the section with an action's input and its result, as plain text."""
    blocks: list[Output | Notice] = [Output("Given", plain_text(_given(action)))]
    if action.HasField("outcome"):
        told = _came_of(action.outcome, stored)
        blocks += [Output(caption, text) for caption, text in told if text.text or text.cut]
    elif action.outcome_bytes:
        blocks.append(Notice(f"Its outcome has {number(action.outcome_bytes)} bytes, and is too large for this page."))
    return PageSection(link("action", job=action.key.job_id, action=action.key.action_id), blocks)


def _given(action: Past) -> str:
    """The program that was run, or the message as it was submitted."""
    if not action.HasField("spec"):
        return "What was submitted is not kept."
    which = action.spec.WhichOneof("payload")
    if which == "generate":
        return f"{number(len(action.spec.generate.prompt_token_ids))} tokens of a prompt"
    if which == "env_step":
        command = action.spec.env_step.command
        program = command.WhichOneof("program")
        return " ".join(command.argv.arguments) if program == "argv" else command.shell or command.python
    return str(getattr(action.spec, which)) if which else ""


def _came_of(outcome: outcome_pb2.Outcome, stored: Mapping[str, bytes]) -> Iterator[tuple[str, PlainText]]:
    if outcome.HasField("failed"):
        yield "Failure", plain_text(f"{outcome.failed.reason}: {outcome.failed.message}")
    held = _result_of(outcome)
    which = held.WhichOneof("result")
    if which == "generate":
        yield f"{number(len(held.generate.token_ids))} tokens", plain_text(held.generate.text)
    elif which == "tool_call":
        yield "Response", _blob(held.tool_call.response, stored)
    elif which in {"env_step", "reward"}:
        command = held.env_step if which == "env_step" else held.reward.command
        yield "Standard output", _blob(command.stdout, stored)
        yield "Standard error", _blob(command.stderr, stored)


def _result_of(outcome: outcome_pb2.Outcome) -> outcome_pb2.Succeeded:
    """Returns the result of an action, whole or as far as it came before it was stopped."""
    if outcome.HasField("succeeded"):
        return outcome.succeeded
    return outcome.failed.partial if outcome.HasField("failed") else outcome.cancelled.partial


def _blobs_of(outcome: outcome_pb2.Outcome) -> Sequence[common_pb2.Blob]:
    held = _result_of(outcome)
    commands = (held.env_step, held.reward.command)
    return (held.tool_call.response, *(blob for each in commands for blob in (each.stdout, each.stderr)))


def _blob(blob: common_pb2.Blob, stored: Mapping[str, bytes]) -> PlainText:
    if not blob.HasField("reference"):
        return plain_text(blob.inline)
    kept = blob.reference
    if kept.sha256 not in stored:
        return PlainText("", f"{number(kept.size)} bytes are in the payload store, and are not shown.")
    return plain_text(stored[kept.sha256], size=kept.size)
