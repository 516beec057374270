"""A group: siblings side by side, with their rewards and spread, and who was replaced and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from callsheet.client.errors import NotFoundError
from callsheet.dashboard.blocks import Cell, Facts, Gantt, LaneBar, Notice, Table, View, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.past import PastTrajectory, cost_table, end_of, lifetime, reward_of, rewards_of, sum_of
from callsheet.dashboard.words import NOTHING, duration, enum_name, number, seconds_of
from callsheet.v1 import admin_service_pb2, client_service_pb2, job_pb2

_MOST: Final = 256
_LANES: Final = 64
_SEATS: Final = ("masked", "dropped", "lost", "completed", "abandoned", "open")


async def look(asked: Asked) -> View:
    """Asks for a group, and for all trajectories that were ever members of it."""
    job, name = asked.of("job"), asked.of("group")
    found = await asked.source.list_trajectory_history(
        admin_service_pb2.ListTrajectoryHistoryRequest(job_id=job, group_id=name, page_size=_MOST)
    )
    try:
        groups = await asked.source.list_groups(client_service_pb2.ListGroupsRequest(job_id=job, group_id=name))
        group = groups.groups[0] if groups.groups else None
    except NotFoundError:
        group = None  # Its job is closed, which keeps the trajectories alone.
    prices = (await asked.source.get_server_info()).prices
    return group_view(job, name, group, found.trajectories, prices=prices, now=asked.now)


def group_view(
    job: str,
    name: str,
    group: job_pb2.GroupStatus | None,
    members: Sequence[PastTrajectory],
    *,
    prices: Mapping[str, float],
    now: float,
) -> View:
    """Returns the page; `group` is None where its job is closed."""
    rewards = rewards_of(members)
    facts: list[tuple[str, Cell | str]] = [("members ever", number(len(members))), ("rewards", number(len(rewards)))]
    if rewards:
        spread = f"{number(min(rewards))} to {number(max(rewards))}, deviation {number(pstdev(rewards))}"
        facts += [("mean reward", number(fmean(rewards))), ("spread", spread)]
    blocks: list[Any] = [Facts(facts)]
    seats: dict[str, str] = {}
    if group is not None:
        for seat in reversed(_SEATS):
            seats |= dict.fromkeys(getattr(group, seat), seat)
        rule = enum_name(job_pb2.OnInfra, group.spec.on_infra, "replace")
        quorum = number(group.spec.quorum or group.spec.size)
        facts += [
            ("size", number(group.spec.size)),
            ("quorum", f"{quorum}, {'reached' if group.has_quorum else 'not reached'}"),
            ("members lost to INFRA", rule),
        ]
    if rewards and len(rewards) > 1 and min(rewards) == max(rewards):
        blocks.append(Notice("All rewards are equal: an advantage within the group teaches nothing.", "bad"))
    blocks += [_time_line(members, now), _siblings(job, members, seats, now)]
    cost = group.cost if group is not None else sum_of(each.cost for each in members)
    blocks.append(cost_table("What its members cost", cost, prices))
    is_over = group is None or not group.open
    trail = (link("job", job=job), link("trajectories", "Trajectories", job=job))
    return View(plain_line(name), blocks, f"{number(len(rewards))} members have a reward.", 0 if is_over else 3, trail)


def _siblings(job: str, members: Sequence[PastTrajectory], seats: Mapping[str, str], now: float) -> Table:
    best = max(rewards_of(members), default=0.0)
    rows = []
    for each in sorted(members, key=lambda each: seconds_of(each.opened)):
        reward = reward_of(each)
        share = max(min(reward / best, 1.0), 0.0) if reward is not None and best > 0 else None
        seat = seats.get(each.trajectory_id, NOTHING)
        is_lost = each.end == job_pb2.TRAJECTORY_END_LOST
        rows.append(
            (
                link("trajectory", job=job, trajectory=each.trajectory_id),
                end_of(each),
                Cell(f"{seat}: replaced" if seat == "lost" else seat, tone="bad" if is_lost else ""),
                Cell(NOTHING if reward is None else number(reward), share=share, is_number=True),
                count(str(each.policy_version), link("step", job=job, version=str(each.policy_version)).href),
                count(duration(lifetime(each, now))),
                plain_line(each.reason, 300),
            )
        )
    columns = ("trajectory", "state", "seat", "reward", "version", "lived", "why it ended")
    return Table("Siblings, in the order in which they were opened", columns, rows, "it has no member that is kept")


def _time_line(members: Sequence[PastTrajectory], now: float) -> Gantt:
    start = min((seconds_of(each.opened) for each in members), default=now)
    lanes: list[tuple[str, list[LaneBar]]] = []
    for each in sorted(members, key=lambda each: -lifetime(each, now))[:_LANES]:
        begin = seconds_of(each.opened) - start
        colour = "failed" if each.end in {job_pb2.TRAJECTORY_END_LOST, job_pb2.TRAJECTORY_END_ABANDONED} else "generate"
        bar = LaneBar(begin, begin + lifetime(each, now), colour, plain_line(each.trajectory_id))
        lanes.append((plain_line(each.trajectory_id, 40), [bar]))
    return Gantt("Siblings over time, the longest first", lanes, max((bars[0].end for _, bars in lanes), default=1.0))
