"""Keeps the actions that the planner placed freely and that still run, by their managers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Action, Manager
from callsheet.scheduler.core.words.model import ActionKind, ActionRequest, Token
from callsheet.scheduler.core.words.plan import Assignment


class Running(NamedTuple):
    """Resources of a placed action on its manager; alike actions share one object. It does not keep its action alive.

    Attributes:
        job: Id of its job.
        generates: Whether the action is a generation.
        units: Units that it holds, by resource.
        milli_use: Thousandths of shared cores it is expected to use.
        load: Cores that the trajectory whose sandbox it makes is expected to use; 0 if it makes none.
    """

    job: str
    generates: bool
    units: Mapping[str, int]
    milli_use: int
    load: float

    @staticmethod
    def of(request: ActionRequest, units: Mapping[str, int], milli_use: int, load: float = 0.0) -> Running:
        """Returns the resources of an action with a grant."""
        return Running(request.key.job_id, request.kind is ActionKind.GENERATE, units, milli_use, load)


@dataclass(slots=True)
class OnManager:
    """Actions that the planner placed on a manager.

    Attributes:
        fresh: Actions placed since the manager was last settled; whether they were dispatched is not known yet.
        running: Actions that run, by the token of the attempt.
        left: The list in which the manager notes attempts that end; see `Manager.left`.
        milli_use: Thousandths of shared cores that all of it is expected to use.
        load: Cores that the trajectories whose sandboxes it makes are expected to use.
    """

    fresh: list[tuple[Action, Running]] = field(default_factory=list)
    running: dict[Token, Running] = field(default_factory=dict)
    left: list[Token] | None = None
    milli_use: int = 0
    load: float = 0.0


_NOTHING = OnManager()


class PlacedActions:
    """The books. That an attempt ended is found out when its manager's part is settled.

    Attributes:
        held: Units that jobs hold, by job and resource.
        generating: How many generations run.
        generating_of: The same by job.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {}
        self.generating = 0
        self.generating_of: dict[str, int] = {}
        self._on: dict[str, OnManager] = {}

    def add(self, manager_id: str, action: Action, running: Running) -> None:
        """Notes a placement."""
        mine = self._on.get(manager_id)
        if mine is None:
            mine = self._on[manager_id] = OnManager()
        mine.fresh.append((action, running))
        self._count(mine, running, 1)

    def take_back(self, assignments: Iterable[Assignment]) -> None:
        """Forgets placements that are not going to be proposed; those of others are not in the books."""
        for manager_id, key in ((each.manager_id, each.key) for each in assignments):
            mine = self._on.get(manager_id, _NOTHING)
            noted = next((each for each in reversed(mine.fresh) if each[0].key == key), None)
            if noted is not None:
                mine.fresh.remove(noted)
                self._count(mine, noted[1], -1)

    def settle(self, manager: Manager) -> OnManager:
        """Forgets what no longer runs on a manager and returns what does. It looks at what came and went, no more."""
        mine = self._on.get(manager.manager_id)
        if mine is None:
            return _NOTHING
        for action, running in mine.fresh:
            attempt = action.attempt
            if attempt is not None and attempt.manager_id == manager.manager_id:
                mine.running[attempt.token] = running
            else:
                self._count(mine, running, -1)
        mine.fresh.clear()
        for token in _ended(mine, manager):
            self._count(mine, mine.running.pop(token), -1)
        return mine

    def keep_only(self, managers: Container[str]) -> None:
        """Forgets what was placed on managers other than these: they are lost, and all that ran there with them."""
        for manager_id in [manager_id for manager_id in self._on if manager_id not in managers]:
            lost = self._on.pop(manager_id)
            for running in (*(fresh for _, fresh in lost.fresh), *lost.running.values()):
                self._count(lost, running, -1)

    def _count(self, mine: OnManager, running: Running, times: int) -> None:
        job, generates, units, milli_use, load = running
        if milli_use:
            mine.milli_use += times * milli_use
        if load:
            mine.load += times * load
        if generates:
            self.generating += times
            mine_now = self.generating_of.get(job, 0) + times
            if mine_now:
                self.generating_of[job] = mine_now
            else:
                self.generating_of.pop(job, None)
        if not units:
            return
        held = self.held.get(job)
        if held is None:
            held = self.held[job] = {}
        total = 0
        for resource, count in units.items():
            total = held[resource] = held.get(resource, 0) + times * count
        if not total and not any(held.values()):
            del self.held[job]


def _ended(mine: OnManager, manager: Manager) -> list[Token]:
    """Those that run no more: what the manager noted, or all it does not have if that was not for these books."""
    noted = manager.left
    if noted is None or noted is not mine.left:
        manager.left = mine.left = []
        return [token for token in mine.running if token not in manager.attempts]
    ended = [token for token in noted if token in mine.running]
    noted.clear()
    return ended
