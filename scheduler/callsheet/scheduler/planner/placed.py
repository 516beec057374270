"""What the planner placed and still runs: actions that were free to go anywhere, by the manager they went to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from callsheet.scheduler.core.entities import Action
from callsheet.scheduler.core.model import ActionKey, ActionKind
from callsheet.scheduler.core.state import SchedulerState


class Running(NamedTuple):
    """What a placed action takes where it is.

    Attributes:
        kind: Its kind.
        units: What it holds, by resource.
        milli_use: Thousandths of shared cores it is expected to use.
        load: Cores that the trajectory whose sandbox it makes is expected to use; 0 if it makes none.
    """

    job: str
    kind: ActionKind
    units: Mapping[str, int]
    milli_use: int
    load: float


class PlacedActions:
    """The books; those that ended are found out when they are looked at."""

    def __init__(self) -> None:
        self._on: dict[str, dict[ActionKey, Running]] = {}

    def add(self, manager_id: str, key: ActionKey, running: Running) -> None:
        """Notes a placement."""
        self._on.setdefault(manager_id, {})[key] = running

    def on(self, manager_id: str, state: SchedulerState) -> list[Running]:
        """What still runs on a manager."""
        mine = self._on.get(manager_id)
        if not mine:
            return []
        for key in [key for key in mine if not _runs_on(state, key, manager_id)]:
            del mine[key]
        return list(mine.values())

    def all(self, state: SchedulerState) -> Iterator[Running]:
        """What still runs anywhere."""
        for manager_id in list(self._on):
            yield from self.on(manager_id, state)
            if not self._on[manager_id]:
                del self._on[manager_id]


def _runs_on(state: SchedulerState, key: ActionKey, manager_id: str) -> bool:
    action = state.find_action(key)
    return isinstance(action, Action) and action.attempt is not None and action.attempt.manager_id == manager_id
