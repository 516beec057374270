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
    lanes_of,
    lifetime,
    times_of,
    trajectory_table,
)
from callsheet.dashboard.words import duration, kind_name, number, seconds_of
from callsheet.v1 import admin_service_pb2

_TRAJECTORIES: Final = 1_000
_STRAGGLERS: Final = 32
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
            job_id=job,
            policy_version=int(version),
            page_size=_TRAJECTORIES,
            page_token=asked.of("after"),
            longest=_STRAGGLERS,
        )
    )
    names = [each.trajectory_id for each in told.trajectories]
    actions: Sequence[Past] = ()
    if names:
        request = admin_service_pb2.ListActionHistoryRequest(
            job_id=job, trajectory_ids=names, page_size=_ACTIONS, brief=True
        )
        actions = (await asked.source.list_action_history(request)).actions
    return step_view(job, version, told, actions, asked.now)


def step_view(
    job: str,
    version: str,
    told: admin_service_pb2.ListTrajectoryHistoryResponse,
    actions: Sequence[Past],
    now: float,
) -> View:
    """Returns the page.

    Args:
        job: The job.
        version: The policy version.
        told: Its trajectories that live longest, and a summary of all.
        actions: Of those.
        now: Seconds since 1970.
    """
    slowest, summary, more = told.trajectories, told.summary, told.next_page_token
    start = min((seconds_of(each.opened) for each in slowest), default=now)
    lanes, left_out = lanes_of(actions, start, now, _LANES)
    end = max((bars[-1].end for _, bars in lanes), default=1.0)
    shown = f"the {len(lanes)} that end last of {len(lanes) + left_out}" if left_out else "those that end last first"
    older = link("step", "Older trajectories of this version", job=job, version=version, after=more) if more else None
    count_of = number(summary.trajectories)
    blocks = (
        Facts(
            (
                ("trajectories", count_of + ("+" if more else "")),
                ("still open", number(summary.open)),
                ("mean reward", number(summary.mean_reward) if summary.HasField("mean_reward") else "none"),
                ("longest", duration(lifetime(slowest[0], now)) if slowest else "none"),
                ("median", duration(summary.median_s) if slowest else "none"),
            )
        ),
        Notice(f"The time-line has the actions of the {len(slowest)} trajectories that live longest."),
        Gantt(f"By node and engine, {shown}", lanes, end),
        _longest(actions, now),
        trajectory_table("Stragglers", job, slowest[:_LISTED], now, older),
    )
    title = f"Step of version {version}"
    trail = (link("job", job=job), link("trajectories", "Trajectories", job=job))
    return View(title, blocks, f"{count_of} trajectories.", 5 if summary.open else 0, trail)


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
