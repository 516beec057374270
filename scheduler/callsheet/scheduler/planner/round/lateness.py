"""Decides when an action has waited too long, for its duration and for the competing work.

An action is late once it has waited for its duration divided by the ageing, as long as that can be had at all. If more
work waits than can be served so soon, every action would be late, and the order would become first come, first served.
So no action is late before it has waited for twice the time that all the competing work would take, up to a bound that
keeps an endless overload from starving any action.

Members of a class are in order of arrival, so no member has waited longer than those ahead. Retried members are the
exception: they keep their places and wait anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.ready import ReadyClass
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.round.competition import Servable

BACKLOGS = 2.0

HOLDING = 2.0
MOST_PATIENCE = 20.0


def backlog_s(fleet: Fleet, servable: Sequence[Servable]) -> list[float]:
    """Seconds in which a fleet could do the work that waits with each class, its own included.

    Work is counted by kind of resource, at the fewest units; a class waits for the kind that needs the longest.
    """
    if not servable:
        return []
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(fleet.row_kinds))}
    kind_of = np.array([kinds[kind] for kind in fleet.row_kinds], np.int64)
    # Rows beyond the fleet's own columns only tell how units lie on nodes.
    owner = np.repeat(np.arange(len(servable)), [len(block.touched) for _, block in servable])
    rows = np.concatenate([block.touched for _, block in servable])
    unit_s = np.concatenate([block.touched_unit_s for _, block in servable])
    own = rows < len(kind_of)
    owner, rows, unit_s = owner[own], rows[own], unit_s[own]
    least = np.full((len(servable), len(kinds)), np.inf)
    np.minimum.at(least, (owner, kind_of[rows]), unit_s)
    touched = np.isfinite(least)
    count = np.array([ready.count for ready, _ in servable], np.float64)
    work = count @ np.where(touched, least, 0.0)
    used = np.unique(rows)
    capacity = np.bincount(kind_of[used], weights=np.array(fleet.row_capacity)[used], minlength=len(kinds))
    seconds = np.divide(work, capacity, out=np.zeros(len(kinds)), where=capacity > 0)
    waits: list[float] = np.where(touched, seconds, 0.0).max(axis=1, initial=0.0).tolist()
    return waits


def late_after_s(duration_s: float, ageing: float, backlog: float) -> float:
    """Wait after which an action is late; infinite for an ageing of 0."""
    if not ageing:
        return float("inf")
    soonest = duration_s / ageing
    return max(soonest, min(BACKLOGS * backlog, MOST_PATIENCE * soonest))


def hold_after_s(hold_after: float, backlog: float) -> float:
    """Wait after which a node is held for an action that fits nowhere.

    A node that is held runs empty. That is the last resort, once lateness has not helped for as long again.
    """
    return max(hold_after, HOLDING * min(BACKLOGS * backlog, MOST_PATIENCE * hold_after))


def first_members(ready: ReadyClass, most: int) -> Iterator[Action]:
    """Up to so many members of a class in order; most who ask look at the first one only."""
    head = ready.head()
    if head is not None:
        yield head
        yield from islice(ready, 1, most)


def longest_wait_s(members: Iterable[Action], now: float) -> float:
    """Seconds that the member of a class has waited that has waited longest; 0 if there is none."""
    longest = 0.0
    for action in members:
        longest = max(longest, now - action.queued_since)
        if not action.attempts:
            break
    return longest


def late_members(members: Iterable[Action], late_after: float, now: float) -> int:
    """How many of a class's members are late or ahead of one that is: it comes to its turn after them."""
    late = 0
    for place, action in enumerate(members, 1):
        if now - action.queued_since > late_after:
            late = place
        elif not action.attempts:
            break
    return late
