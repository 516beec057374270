"""Cores that running elastic attempts have beyond the fewest: taken for actions that would wait, and given back.

Actions that must go to their sandbox's node, and resets, do not wait for the end of a command that could run on fewer
cores. Other actions do wait: to run similar actions one after another is better than to run all at once on fewer cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from callsheet.scheduler.core.state.entities import Attempt, Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import CPU, ActionKind, ActionState
from callsheet.scheduler.core.words.plan import CoreChange
from callsheet.scheduler.core.work.resizing import elastic_cores
from callsheet.scheduler.core.work.servability import by_need, service_of


class Reclaim:
    """Cores to take in one round; each is taken for one class only."""

    def __init__(self, state: SchedulerState) -> None:
        """Starts from the state of now."""
        self._state = state
        self._cores: dict[Attempt, int] = {}

    @cached_property
    def _by_node(self) -> dict[Node, list[Attempt]]:
        """Attempts with cores to spare, by node; looked for only when an action lacks some."""
        found: dict[Node, list[Attempt]] = {}
        for attempt in self._state.elastic_attempts.values():
            if attempt.manager is not None and _spare(attempt, attempt.units.get(CPU, 0)) > 0:
                found.setdefault(attempt.manager.node, []).append(attempt)
        return found

    @property
    def changes(self) -> tuple[CoreChange, ...]:
        """Decisions so far."""
        return tuple(CoreChange(attempt.action.key, cores) for attempt, cores in self._cores.items())

    def make_room(self, key: ClassKey, free: Mapping[str, Mapping[str, int]]) -> None:
        """Takes cores so that one more member of a class fits somewhere; none if that does not help.

        Args:
            key: The class.
            free: What this round leaves of nodes, by node id; of others all that is free.
        """
        if not (key.pinned_to or key.kind is ActionKind.ENV_RESET) or not self._by_node:
            return
        for manager, service in self._places(key):
            node = manager.node
            left = free.get(node.node_id, node.free)
            booked = service.booked(by_need(self._state, manager, key, key.demand.minimum()))
            others_fit = all(left.get(name, 0) >= count for name, count in booked.items() if name != CPU)
            lacking = booked.get(CPU, 0) - max(left.get(CPU, 0), 0)
            if not others_fit or lacking <= 0 or service.free_slots == 0:
                continue
            if self._take(self._by_node[node], lacking):
                return

    def _places(self, key: ClassKey) -> Iterable[tuple[Manager, Service]]:
        managers = self._state.managers
        ids = [key.pinned_to] if key.pinned_to else [name for node in self._by_node for name in sorted(node.managers)]
        for manager in (managers[name] for name in ids if name in managers):
            service = service_of(manager, key.kind, key.service)
            if manager.takes(key.pinned_to) and service is not None and manager.node in self._by_node:
                yield manager, service

    def _take(self, attempts: Sequence[Attempt], lacking: int) -> bool:
        """Takes cores one by one from who has most to spare; all that lack, or none."""
        cores = {attempt: self._cores.get(attempt, attempt.units[CPU]) for attempt in attempts}
        if sum(_spare(attempt, count) for attempt, count in cores.items()) < lacking:
            return False
        for _ in range(lacking):
            cores[max(cores, key=lambda attempt: _spare(attempt, cores[attempt]))] -= 1
        self._cores.update((attempt, count) for attempt, count in cores.items() if count < attempt.units[CPU])
        return True


def give_back(state: SchedulerState) -> tuple[CoreChange, ...]:
    """Returns free cores to attempts that gave some, where nobody waits for them."""
    wanted = {key.pinned_to for key, ready in state.ready.classes.items() if ready.count}
    if "" in wanted:
        return ()
    changes = []
    free: dict[Node, int] = {}
    for attempt in state.narrowed_attempts.values():
        manager = attempt.manager
        if manager is None or not _can_be_told(attempt) or wanted & manager.node.managers:
            continue
        has = attempt.units.get(CPU, 0)
        left = free.setdefault(manager.node, manager.node.free.get(CPU, 0))
        more = min(attempt.narrowed_from - has, left)
        if more > 0:
            free[manager.node] = left - more
            changes.append(CoreChange(attempt.action.key, has + more))
    return tuple(changes)


def _spare(attempt: Attempt, cores: int) -> int:
    """How many of its cores an attempt could give away."""
    entry = elastic_cores(attempt.action.request.demand)
    return max(cores - max(entry.min_units, 1), 0) if entry is not None and _can_be_told(attempt) else 0


def _can_be_told(attempt: Attempt) -> bool:
    """Returns whether the core would change its cores now; a refused change would be proposed in every round."""
    action, manager = attempt.action, attempt.manager
    connected = manager is not None and manager.session is not None
    return connected and action.attempt is attempt and action.state is ActionState.RUNNING
