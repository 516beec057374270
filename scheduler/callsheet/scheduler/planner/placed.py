"""What the planner placed and still runs: actions that were free to go anywhere, by the manager they went to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from callsheet.scheduler.core.entities import Action
from callsheet.scheduler.core.model import ActionKind


class Running(NamedTuple):
    """What a placed action takes where it is.

    Attributes:
        units: What it holds, by resource.
        milli_use: Thousandths of shared cores it is expected to use.
        load: Cores that the trajectory whose sandbox it makes is expected to use; 0 if it makes none.
    """

    action: Action
    units: Mapping[str, int]
    milli_use: int
    load: float


class PlacedActions:
    """The books. That an action ended is found out when its manager's part is settled.

    Attributes:
        held: Units that jobs hold, by job and resource.
        generating: How many generations run.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {}
        self.generating = 0
        self._on: dict[str, list[Running]] = {}

    def add(self, manager_id: str, running: Running) -> None:
        """Notes a placement."""
        self._on.setdefault(manager_id, []).append(running)
        self._count(running, 1)

    def settle(self, manager_id: str) -> list[Running]:
        """Forgets what no longer runs on a manager and returns what does."""
        mine = self._on.get(manager_id)
        if mine is None:
            return []
        left = []
        for running in mine:
            attempt = running.action.attempt
            if attempt is not None and attempt.manager_id == manager_id:
                left.append(running)
            else:
                self._count(running, -1)
        if len(left) < len(mine):
            self._on[manager_id] = left
        return left

    def _count(self, running: Running, times: int) -> None:
        request = running.action.request
        held = self.held.setdefault(request.key.job_id, {})
        for resource, units in running.units.items():
            held[resource] = held.get(resource, 0) + times * units
        if request.kind is ActionKind.GENERATE:
            self.generating += times
