"""Memory of sandboxes by need: the booked memory is the held one and a share of the rest of the demand.

A sandbox's grant names its demand, which is its limit. Its manager gives it the whole demand only while something runs
in it. Meanwhile others wait if the node lacks it; see docs/concepts/rules.md.
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
MOST_LABELS: Final = 4096

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

    The journal keeps it as a cache. Without it new sandboxes are booked with their demand until enough have ended.
    """

    def __init__(self) -> None:
        """Starts with nothing known."""
        self._lives: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()
        self._expected: dict[tuple[str, str], int] = {}
        self._unsaved: set[tuple[str, str]] = set()

    def learn(self, job: str, label: str, most_mib: int) -> None:
        """Takes in the life of a sandbox; of too many labels the one that was not seen for longest is forgotten."""
        self._unsaved.add((job, label))
        self._add((job, label), [most_mib])

    def take_unsaved(self, most: int) -> list[tuple[tuple[str, str], list[int]]]:
        """Returns up to `most` jobs and labels that changed since the last call, and their lives; none if forgotten."""
        keys = [self._unsaved.pop() for _ in range(min(most, len(self._unsaved)))]
        return [(key, list(self._lives.get(key, ()))) for key in keys]

    def put(self, job: str, label: str, lives: list[int]) -> None:
        """Takes back the lives of a job and label as they were saved.

        Raises:
            ValueError: They are not whole MiB above 0.
        """
        if not (lives and all(type(each) is int and each > 0 for each in lives)):
            raise ValueError(f"must be numbers of MiB (got {lives!r})")
        self._add((job, label), lives)

    def _add(self, key: tuple[str, str], more: list[int]) -> None:
        lives = self._lives.setdefault(key, deque(maxlen=_LIVES))
        self._lives.move_to_end(key)
        lives.extend(more)
        if len(self._lives) > MOST_LABELS:
            forgotten, _ = self._lives.popitem(last=False)
            self._expected.pop(forgotten, None)
            self._unsaved.add(forgotten)
        if len(lives) >= LEAST_LIVES:
            percentile_95 = sorted(lives)[-(-95 * len(lives) // 100) - 1]
            self._expected[key] = -(-percentile_95 // _STEP_MIB) * _STEP_MIB

    def of_new(self, job: str, label: str, demand: Demand) -> int:
        """Returns the MiB of memory that are booked by need for a new sandbox; 0 if only its demand is booked."""
        expected = self._expected.get((job, label))
        return 0 if expected is None else booked_mib(expected, demand.by_need_mib)
