"""A step: what ran where while trajectories of one policy version were made, stragglers first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from callsheet.client.errors import RefusalCode, refused
from callsheet.dashboard.blocks import Cell, Facts, Gantt, Notice, Table, View, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.past import (
    Past,
    PastTrajectory,
    lanes_of,
    lifetime,
    rewards_of,
    times_of,
    trajectory_table,
)
from callsheet.dashboard.words import duration, kind_name, number, seconds_of
from callsheet.v1 import admin_service_pb2

_TRAJECTORIES: Final = 1_000
_STRAGGLERS: Final = 64
_ACTIONS: Final = 1_000
_LANES: Final = 64
_LISTED: Final = 20


async def look(asked: Asked) -> View:
    """Asks for the trajectories of a version, and for the actions of those that live longest.

    Raises:
        RefusedError: INVALID_ARGUMENT: the version is none.
    """
    job, version = asked.of("job"), asked.of("version")
    if not (version.isascii() and version.isdigit() and len(version) <= 15):
        raise refused(RefusalCode.INVALID_ARGUMENT, field="version", value=version[:40], rule="must be a whole number")
    told = await asked.source.list_trajectory_history(
        admin_service_pb2.ListTrajectoryHistoryRequest(
            job_id=job, policy_version=int(version), page_size=_TRAJECTORIES, page_token=asked.of("after")
        )
    )
    slowest = sorted(told.trajectories, key=lambda each: -lifetime(each, asked.now))
    actions: Sequence[Past] = ()
    if slowest:
        names = [each.trajectory_id for each in slowest[:_STRAGGLERS]]
        request = admin_service_pb2.ListActionHistoryRequest(job_id=job, trajectory_ids=names, page_size=_ACTIONS)
        actions = (await asked.source.list_action_history(request)).actions
    return step_view(job, version, slowest, actions, now=asked.now, more=told.next_page_token)


def step_view(
    job: str, version: str, slowest: Sequence[PastTrajectory], actions: Sequence[Past], *, now: float, more: str = ""
) -> View:
    """Returns the page.

    Args:
        job: The job.
        version: The policy version.
        slowest: Trajectories, those that live longest first.
        actions: Of the first of them.
        now: Seconds since 1970.
        more: Asks for more trajectories; empty if these are all.
    """
    start = min((seconds_of(each.opened) for each in slowest), default=now)
    rewards = rewards_of(slowest)
    lanes, left_out = lanes_of(actions, start, now, _LANES)
    end = max((bars[-1].end for _, bars in lanes), default=1.0)
    is_open = any(not each.HasField("closed") for each in slowest)
    shown = f"the {len(lanes)} that end last of {len(lanes) + left_out}" if left_out else "those that end last first"
    older = link("step", "Older trajectories of this version", job=job, version=version, after=more) if more else None
    listed = slowest[:_LISTED]
    blocks = (
        Facts(
            (
                ("trajectories", number(len(slowest)) + ("+" if more else "")),
                ("still open", number(sum(not each.HasField("closed") for each in slowest))),
                ("mean reward", number(sum(rewards) / len(rewards)) if rewards else "none"),
                ("longest", duration(lifetime(slowest[0], now)) if slowest else "none"),
                ("median", duration(lifetime(slowest[len(slowest) // 2], now)) if slowest else "none"),
            )
        ),
        Notice(
            f"The time-line has the actions of the {min(len(slowest), _STRAGGLERS)} trajectories that live longest."
        ),
        Gantt(f"By node and engine, {shown}", lanes, end),
        _longest(actions, now),
        trajectory_table("Stragglers", job, listed, now, older),
    )
    title = f"Step of version {version}"
    trail = (link("job", job=job), link("trajectories", "Trajectories", job=job))
    return View(title, blocks, f"{number(len(slowest))} trajectories.", 5 if is_open else 0, trail)


def _longest(actions: Sequence[Past], now: float) -> Table:
    timed = sorted(((times_of(each, now), each) for each in actions), key=lambda each: each[0][0] - each[0][2])
    rows = [
        (
            link("action", job=each.key.job_id, action=each.key.action_id),
            link("trajectory", job=each.key.job_id, trajectory=each.trajectory_id) if each.trajectory_id else "",
            kind_name(each.kind),
            count(duration(ended - submitted)),
            count(duration(began - submitted)),
            count(duration(ended - began)),
            Cell(plain_line(" ".join(filter(None, (each.node_id, each.manager_id))))),
        )
        for (submitted, began, ended), each in timed[:_LISTED]
    ]
    columns = ("action", "trajectory", "kind", "in all", "waited", "ran", "on")
    return Table("Actions that took longest", columns, rows, "none was kept")
