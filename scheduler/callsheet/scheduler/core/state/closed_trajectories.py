"""Closed trajectories, which are kept for a while and then forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from callsheet.scheduler.core.words.costs import NOTHING, Cost
from callsheet.scheduler.core.words.model import TrajectoryEnd


class ClosedTrajectory(NamedTuple):
    """Rest of a closed trajectory; `group_id` is empty if it has no group. Its cost may still grow."""

    end: TrajectoryEnd
    reason: str
    policy_version: int
    group_id: str = ""
    cost: Cost = NOTHING


@dataclass(slots=True, eq=False)
class ClosedTogether:
    """Closed trajectories of which nothing is open any more, forgotten together: one, or those with a seat in a group.

    Attributes:
        ended_at: Since when nothing is, in seconds since the epoch; later by what no scheduler ran since.
        group_id: The group that is forgotten with them; else empty.
        size: Bytes of what is kept of them.
        reopened: The group has another member since, so that these are open again.
    """

    ended_at: float
    trajectory_ids: tuple[str, ...]
    group_id: str
    size: int
    reopened: bool = False
