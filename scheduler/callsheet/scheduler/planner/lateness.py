"""When an action has waited too long: for its duration, and for what waits with it.

An action is late once it has waited for its duration divided by the ageing, as long as that can be had at all. Where
more waits than can be served so soon, everybody would be late, and going by lateness would mean first come, first
served. So nobody is late before having waited for twice the time that all the competing work would take, up to a bound
that keeps an endless overload from starving anybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from callsheet.scheduler.planner.groups import Servable
from callsheet.scheduler.planner.instance import Floats
from callsheet.scheduler.planner.pools import Fleet

BACKLOGS = 2.0
MOST_PATIENCE = 20.0


def backlog_s(fleet: Fleet, servable: Sequence[Servable]) -> list[float]:
    """Seconds in which a fleet could do the work that waits with each class, its own included.

    Work is counted by kind of resource, at the fewest units; a class waits for the kind that needs the longest.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(fleet.row_kinds))}
    kind_of = np.array([kinds[kind] for kind in fleet.row_kinds], np.int64)
    work = np.zeros(len(kinds))
    used_rows: set[int] = set()
    touched_kinds = []
    for ready, block in servable:
        own = block.touched < len(kind_of)
        rows = block.touched[own]
        used_rows.update(rows.tolist())
        per_kind: Floats = np.full(len(kinds), np.inf)
        np.minimum.at(per_kind, kind_of[rows], block.touched_units[own] * block.touched_s[own])
        touched = np.flatnonzero(np.isfinite(per_kind))
        work[touched] += ready.count * per_kind[touched]
        touched_kinds.append(touched)
    capacity = np.zeros(len(kinds))
    for row in used_rows:
        capacity[kind_of[row]] += fleet.row_capacity[row]
    seconds = np.divide(work, capacity, out=np.zeros(len(kinds)), where=capacity > 0)
    return [float(seconds[touched].max(initial=0.0)) for touched in touched_kinds]


def late_after_s(duration_s: float, ageing: float, backlog: float) -> float:
    """Wait after which an action is late; infinite for an ageing of 0."""
    if not ageing:
        return float("inf")
    soonest = duration_s / ageing
    return max(soonest, min(BACKLOGS * backlog, MOST_PATIENCE * soonest))


def hold_after_s(hold_after: float, backlog: float) -> float:
    """Wait after which a node is held for an action that fits nowhere."""
    return max(hold_after, min(BACKLOGS * backlog, MOST_PATIENCE * hold_after))
