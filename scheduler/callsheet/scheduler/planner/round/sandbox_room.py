"""Memory and disk that sandboxes hold between actions, booked by trajectory while a round lets some begin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from callsheet.scheduler.core.state.entities import Action, Trajectory
from callsheet.scheduler.core.state.ready import ClassKey, ReadyQueue
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKind, Demand
from callsheet.scheduler.core.work.admission import first_actions
from callsheet.scheduler.planner.fleet.offers import fitting, nearest_node, need_of, place_of
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import Integers, OptionBlock

Needs = list[tuple[int, Integers]]
"""(pool, what a sandbox holds of each column there), for each pool that can have it."""


class SandboxRoom:
    """See the module's docstring."""

    def __init__(self, state: SchedulerState, fleet: Fleet, block_of: Callable[[ClassKey], OptionBlock]) -> None:
        """Starts from what is free now, less what resets that are ready are going to take.

        Args:
            state: The core.
            fleet: Refreshed for it.
            block_of: The options of a class.
        """
        self._pools = fleet.pools
        self._free = [pool.free.copy() for pool in fleet.pools]
        self._block_of = block_of
        self._needs: dict[tuple[str, Demand, str, str], Needs] = {}
        self._held: set[int] = set()
        resets = [(key, ready.count) for key, ready in state.ready.classes.items() if key.kind is ActionKind.ENV_RESET]
        without_room = [key for key, count in resets if self._take(key, count) < count]
        for key in without_room:
            self._hold(self._needs_of(key))

    def hold_for(self, trajectory: Trajectory) -> bool:
        """Keeps a node for a trajectory whose sandbox fits nowhere, and says whether that was done.

        The node that lacks the least keeps what it has of what the sandbox holds, or smaller ones of others would take
        whatever comes free. There is one such sandbox in a pool at a time.
        """
        reset = reset_of(trajectory)
        return reset is not None and self._hold(self._needs_of(ReadyQueue.key_of(reset)))

    def _hold(self, needs: Needs) -> bool:
        pools = {pool for pool, _ in needs}
        if not needs or not pools.isdisjoint(self._held) or any(self._fits(pool, need).any() for pool, need in needs):
            return False
        pool, node, need = nearest_node(self._pools, self._free, needs)
        self._free[pool][node, need > 0] = 0
        self._held |= pools
        return True

    def book(self, trajectory: Trajectory) -> bool:
        """Books a trajectory's sandbox; False if there is no room. One without a sandbox needs none."""
        reset = reset_of(trajectory)
        return reset is None or self._take(ReadyQueue.key_of(reset), 1) == 1

    def _take(self, key: ClassKey, count: int) -> int:
        """Books sandboxes on the nodes with the most room, as many as fit, and returns how many."""
        needs = self._needs_of(key)
        if not needs:
            # What nothing can serve now must not wait here, where nobody says so.
            return count
        for taken in range(count):
            room = [(self._fits(pool, need), pool, need) for pool, need in needs]
            fits, pool, need = max(room, key=lambda each: int(each[0].max(initial=0)))
            if not fits.any():
                return taken
            self._free[pool][int(np.argmax(fits))] -= need
        return count

    def _fits(self, pool: int, need: Integers) -> Integers:
        return fitting(self._free[pool], need)

    def _needs_of(self, key: ClassKey) -> Needs:
        alike = (key.service, key.demand, key.job, key.label)
        needs = self._needs.get(alike)
        if needs is None:
            needs = self._needs[alike] = self._held_needs(key)
        return needs

    def _held_needs(self, key: ClassKey) -> Needs:
        held = {entry.resource for entry in key.demand.entries if entry.held_by_trajectory}
        found: dict[int, Integers] = {}
        for option in self._block_of(key).options:
            place = place_of(option)
            pool = self._pools[place.pool]
            need = need_of(option, pool)
            need[[name not in held for name in pool.columns]] = 0
            found[place.pool] = need
        return list(found.items())


def reset_of(trajectory: Trajectory) -> Action | None:
    """Returns the action that makes a waiting trajectory's sandbox; None if it begins without one."""
    actions = first_actions(trajectory)
    return next((action for action in actions if action.request.kind is ActionKind.ENV_RESET), None)
