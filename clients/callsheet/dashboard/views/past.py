"""Common parts of views of trajectories, groups and steps: bars of actions, ends, and costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

from callsheet.client import Cost
from callsheet.dashboard.blocks import Cell, LaneBar, Table, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.words import NOTHING, duration, enum_name, kind_name, number, seconds_of, state_name
from callsheet.v1 import action_pb2, admin_service_pb2, common_pb2, job_pb2

Past = admin_service_pb2.ActionHistory
PastTrajectory = admin_service_pb2.TrajectoryHistory
_COLOURS: Final = {
    action_pb2.ACTION_KIND_GENERATE: "generate",
    action_pb2.ACTION_KIND_ENV_RESET: "env",
    action_pb2.ACTION_KIND_ENV_STEP: "env",
    action_pb2.ACTION_KIND_TOOL_CALL: "tool",
    action_pb2.ACTION_KIND_REWARD: "reward",
}
_UNITS: Final = {"cpu": "core-seconds", "memory": "GiB-seconds", "gpu": "GPU-seconds"}


def phase_of(action: Past) -> str:
    """Returns the phase that an action belongs to, which is also the name of its colour."""
    return _COLOURS.get(action.kind, "tool")


def times_of(action: Past, now: float) -> tuple[float, float, float]:
    """Returns when an action was submitted, began to run and ended, in seconds since 1970; an open one ends now."""
    line = action.timeline
    submitted = seconds_of(line.submitted)
    ended = seconds_of(line.ended) if line.HasField("ended") else max(now, submitted)
    begun = line.started if line.HasField("started") else line.dispatched
    return submitted, min(seconds_of(begun) or ended - line.execution_s, ended), ended


def bars_of(action: Past, start: float, now: float) -> tuple[LaneBar, LaneBar]:
    """Returns the wait and the run of an action, in seconds since `start`."""
    submitted, began, ended = times_of(action, now)
    name, page = plain_line(action.key.action_id), link("action", job=action.key.job_id, action=action.key.action_id)
    what = f"{name}: {kind_name(action.kind)}, {state_name(action.state)}"
    failed = action.state in {admin_service_pb2.ACTION_STATE_FAILED, admin_service_pb2.ACTION_STATE_EXPIRED}
    wait = LaneBar(submitted - start, began - start, "wait", f"{what}; waited {duration(began - submitted)}", page.href)
    colour = "failed" if failed else phase_of(action)
    return wait, LaneBar(began - start, ended - start, colour, f"{what}; ran {duration(ended - began)}", page.href)


def lanes_of(
    actions: Iterable[Past], start: float, now: float, most: int
) -> tuple[list[tuple[str, list[LaneBar]]], int]:
    """Returns lanes by node and manager, in which no bars overlap, and how many lanes were left out.

    The lanes whose last bar ends latest come first, so that stragglers do, and the outliers are what is left of many.
    """
    lanes: dict[str, list[list[LaneBar]]] = {}
    ran = [(bars_of(each, start, now)[1], each) for each in actions if each.manager_id]
    for bar, action in sorted(ran, key=lambda each: each[0].start):
        name = plain_line(" ".join(filter(None, (action.node_id, action.manager_id))), 60)
        rows = lanes.setdefault(name, [])
        row = next((each for each in rows if each[-1].end <= bar.start), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    named = [(name, row) for name, rows in lanes.items() for row in rows]
    named.sort(key=lambda each: -each[1][-1].end)
    return named[:most], max(len(named) - most, 0)


def end_of(trajectory: PastTrajectory) -> Cell:
    """Returns how a trajectory stands."""
    if not trajectory.HasField("closed"):
        return Cell("open" if trajectory.admitted else "waits to begin", tone="quiet")
    end = enum_name(job_pb2.TrajectoryEnd, trajectory.end, "completed")
    return Cell(end, tone="good" if end == "completed" else "bad")


def lifetime(trajectory: PastTrajectory, now: float) -> float:
    """Returns how long a trajectory has lived, in seconds."""
    end = seconds_of(trajectory.closed) if trajectory.HasField("closed") else now
    return max(end - seconds_of(trajectory.opened), 0.0)


def reward_of(trajectory: PastTrajectory) -> float | None:
    """Returns the reward of a trajectory: the one that it was closed with, else its last score."""
    if trajectory.HasField("reward"):
        return trajectory.reward
    return trajectory.scores[-1] if trajectory.scores else None


def rewards_of(trajectories: Iterable[PastTrajectory]) -> list[float]:
    """Returns the rewards that there are; one that is no finite number has no part in means and spreads."""
    return [reward for each in trajectories if (reward := reward_of(each)) is not None and isfinite(reward)]


def trajectory_table(
    caption: str, job: str, trajectories: Sequence[PastTrajectory], now: float, more: Cell | None = None
) -> Table:
    """Returns trajectories in the order given."""
    rows = []
    for each in trajectories:
        reward = reward_of(each)
        version = str(each.policy_version)
        rows.append(
            (
                link("trajectory", job=job, trajectory=each.trajectory_id),
                link("group", job=job, group=each.group_id) if each.group_id else NOTHING,
                count(version, link("step", job=job, version=version).href),
                end_of(each),
                count(NOTHING if reward is None else number(reward)),
                count(duration(lifetime(each, now))),
                plain_line(each.node_id),
                plain_line(each.reason, 300),
            )
        )
    columns = ("trajectory", "group", "version", "state", "reward", "lived", "sandbox on", "why it ended")
    return Table(caption, columns, rows, "none", more)


def cost_table(caption: str, cost: common_pb2.Cost, prices: Mapping[str, float]) -> Table:
    """Returns a cost by resource: held against used, and in money where there are prices."""
    rows = []
    for name in sorted({*cost.held, *cost.used}):
        held, used = cost.held.get(name), cost.used.get(name)
        share = min(used / held, 1.0) if held and used is not None else None
        part = Cost({name: held} if held else {}, {name: used} if used else {}).money(prices)
        rows.append(
            (
                resource_name(name),
                count(NOTHING if held is None else number(held)),
                Cell(NOTHING if used is None else number(used), share=share, is_number=True),
                count(number(part) if prices else NOTHING),
            )
        )
    if prices and rows:
        total = Cost(dict(cost.held), dict(cost.used)).money(prices)
        rows.append(("all", count(""), count(""), count(number(total))))
    return Table(caption, ("resource", "held", "used", "money"), rows, "nothing was counted yet")


def resource_name(name: str) -> str:
    """Returns a resource of costs with its unit."""
    return plain_line(f"{name}, {_UNITS[name]}" if name in _UNITS else name.replace("_", " "))


def sum_of(costs: Iterable[common_pb2.Cost]) -> common_pb2.Cost:
    """Returns costs together."""
    total = common_pb2.Cost()
    for cost in costs:
        for kept, amounts in ((total.held, cost.held), (total.used, cost.used)):
            for name, amount in amounts.items():
                kept[name] += amount
    return total
