"""Memory of sandboxes by need: the booked memory is the held one and a share of the rest of the demand.

A sandbox's grant names its demand, which is its limit. Its manager gives it the whole demand only while something runs
in it. Meanwhile others wait if the node lacks it; see docs/concepts/architecture.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from callsheet.scheduler.core.words.model import MEMORY, ActionKind, Demand

ROOM_TO_RUN: Final = 5
"""A sandbox is booked with one part in so many of what it would need beyond what it holds.

Together that is room for those that run at once. In the coding workload something runs in a sandbox for about a sixth
of its life, and rewards run in copies besides. There, at 2 GB a core, more room made trajectories wait to start (3: a
step 8 % longer on one of three seeds), and less made commands wait for memory (6: a mean ACT 16 % longer on one)."""

_LIVES: Final = 128
# What is learned moves in such steps, so that a planner's options seldom become others.
_STEP_MIB: Final = 16
_MOST_LABELS: Final = 4096

LEAST_LIVES: Final = 8
"""Sandboxes that must have ended before a new one of their job and label is booked by what they held."""


def booked_mib(held_mib: int, demand_mib: int) -> int:
    """Returns the MiB booked of a sandbox's demand for its held memory; a sandbox that holds 0 is not known yet."""
    if not 0 < held_mib < demand_mib:
        return demand_mib
    return held_mib - (held_mib - demand_mib) // ROOM_TO_RUN


def units_by_need(kind: ActionKind, units: dict[str, int], new_mib: int) -> dict[str, int]:
    """Returns the units that a grant books on a node whose sandboxes have memory by need.

    A reward's copy has its memory of the manager alone, as a step has, out of the room that is booked to run in. If it
    were booked besides, it could wait for ever for sandboxes that wait for their own rewards.

    Args:
        kind: Of the action.
        units: The grant.
        new_mib: What is booked of a new sandbox's memory; 0 for its demand.
    """
    if kind is ActionKind.REWARD:
        return {resource: count for resource, count in units.items() if resource != MEMORY}
    return {**units, MEMORY: new_mib} if new_mib and MEMORY in units else units


class HeldMemory:
    """The most that sandboxes held in their lives, by job and label of the reset that made them.

    It is not journaled: after a restart new sandboxes are booked with their demand until enough have ended again.
    """

    def __init__(self) -> None:
        """Starts with nothing known."""
        self._lives: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()
        self._expected: dict[tuple[str, str], int] = {}

    def learn(self, job: str, label: str, most_mib: int) -> None:
        """Takes in the life of a sandbox; of too many labels the one that was not seen for longest is forgotten."""
        key = (job, label)
        lives = self._lives.setdefault(key, deque(maxlen=_LIVES))
        self._lives.move_to_end(key)
        lives.append(most_mib)
        if len(self._lives) > _MOST_LABELS:
            self._expected.pop(self._lives.popitem(last=False)[0], None)
        if len(lives) >= LEAST_LIVES:
            percentile_95 = sorted(lives)[-(-95 * len(lives) // 100) - 1]
            self._expected[key] = -(-percentile_95 // _STEP_MIB) * _STEP_MIB

    def of_new(self, job: str, label: str, demand: Demand) -> int:
        """Returns the MiB booked for a new sandbox by need; 0 if only its demand is known."""
        expected = self._expected.get((job, label))
        return 0 if expected is None else booked_mib(expected, demand.by_need_mib)
