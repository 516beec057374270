"""What enters no model: actions pinned to their sandbox's manager, and cores taken back from wide attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from callsheet.scheduler.core.state.entities import Attempt, Manager
from callsheet.scheduler.core.state.ledger import Node, Service
from callsheet.scheduler.core.state.scheduler_state import ClassKey, ReadyClass, SchedulerState
from callsheet.scheduler.core.words.events import Assignment, CoreChange
from callsheet.scheduler.core.words.model import CPU, ActionKind, ActionRequest, ActionState
from callsheet.scheduler.core.work.resizing import elastic_cores
from callsheet.scheduler.core.work.servability import by_need, service_of
from callsheet.scheduler.planner.fleet.pools import USUAL_USE
from callsheet.scheduler.planner.question.instance import choose_units
from callsheet.scheduler.planner.round.estimates import Estimates

# Cores that running elastic attempts have beyond the fewest: taken for who would wait, and given back.
#
# What must go to its sandbox's node, and resets, do not wait for the end of a command that could do with fewer
# cores. Other actions do: of alike ones, to run one after another is better than to run all at once on fewer cores.


class Reclaim:
    """Cores to take in one round; each is taken for one class only."""

    def __init__(self, state: SchedulerState) -> None:
        """Starts from the state of now."""
        self._state = state
        self._cores: dict[Attempt, int] = {}

    @cached_property
    def _by_node(self) -> dict[Node, list[Attempt]]:
        """Who has cores to spare; looked for only when somebody lacks some."""
        found: dict[Node, list[Attempt]] = {}
        for attempt in self._state.elastic_attempts.values():
            if attempt.manager is not None and _spare(attempt, attempt.units.get(CPU, 0)) > 0:
                found.setdefault(attempt.manager.node, []).append(attempt)
        return found

    @property
    def changes(self) -> tuple[CoreChange, ...]:
        """What was decided so far."""
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
    """Whether the core would change its cores now; a change that it refuses would be proposed round after round."""
    action, manager = attempt.action, attempt.manager
    connected = manager is not None and manager.session is not None
    return connected and action.attempt is attempt and action.state is ActionState.RUNNING


HAS_ITS_SANDBOX = "its sandbox is there"


class PinnedRound:
    """Scratch books of one round."""

    def __init__(self, state: SchedulerState, estimates: Estimates) -> None:
        """Starts from the state of now."""
        self._state = state
        self._estimates = estimates
        self._free: dict[str, dict[str, int]] = {}
        self._taken_slots: dict[tuple[str, str], int] = {}
        self._waiting: list[ClassKey] = []

    def assign(self, most: int) -> list[Assignment]:
        """Assigns pinned actions, by priority and arrival of their classes' first members, up to a number."""
        classes = [(key, ready) for key, ready in self._state.ready.classes.items() if key.pinned_to and ready.count]
        if len(classes) > 1:
            classes.sort(key=_rank)
        assignments: list[Assignment] = []
        for key, ready_class in classes:
            for assignment in self._of_class(key, ready_class):
                assignments.append(assignment)
                if len(assignments) >= most:
                    return assignments
        return assignments

    def reclaim(self) -> tuple[CoreChange, ...]:
        """Cores of running attempts for classes of which something waits after `assign`, and for resets."""
        if not self._state.elastic_attempts:
            return ()
        reclaim = Reclaim(self._state)
        resets = [key for key, ready in self._state.ready.classes.items() if ready.count and not key.pinned_to]
        for key in (*self._waiting, *resets):
            reclaim.make_room(key, self._free)
        return reclaim.changes

    def _of_class(self, key: ClassKey, ready_class: ReadyClass) -> Iterator[Assignment]:
        manager = self._state.managers.get(key.pinned_to)
        if manager is None or not manager.serves_own:
            return
        service = service_of(manager, key.kind, key.service)
        if service is None:
            return
        for action in ready_class:
            units = self._units(key, action.request, manager, service)
            if units is None:
                self._waiting.append(key)
                return
            prediction = self._estimates.of_grant(action.request, units)
            yield Assignment(action.key, manager.manager_id, units, prediction, why=HAS_ITS_SANDBOX)

    def _units(
        self, key: ClassKey, request: ActionRequest, manager: Manager, service: Service
    ) -> dict[str, int] | None:
        """What the action gets, booked; None if there is no room for it."""
        minimum = key.demand.minimum()
        slot = (manager.manager_id, service.description.name)
        taken = self._taken_slots.get(slot, 0)
        if service.free_slots is not None and service.free_slots <= taken:
            return None
        free = self._free_on(manager)

        def booked(units: dict[str, int]) -> dict[str, int]:
            return service.booked(by_need(self._state, manager, key, units))

        if not service.pool_has(minimum):
            return None
        if any(free.get(resource, 0) < count for resource, count in booked(minimum).items()):
            return None
        units = minimum
        if any(entry.elastic for entry in key.demand.entries):
            units = self._widen(key, request, manager, service, free)
        for resource, count in booked(units).items():
            free[resource] -= count
        if service.free_slots is not None:
            self._taken_slots[slot] = taken + 1
        return units

    def _free_on(self, manager: Manager) -> dict[str, int]:
        node = manager.node
        free = self._free.get(node.node_id)
        if free is None:
            free = self._free[node.node_id] = dict(node.free)
        return free

    def _widen(
        self, key: ClassKey, request: ActionRequest, manager: Manager, service: Service, free: dict[str, int]
    ) -> dict[str, int]:
        """Units by price: on shared cores the delay is that of the commands which the cores cannot serve at once."""
        shared = service.description.shared
        waiting = dict(self._state.ready.waiting_weight)
        capacity = dict(manager.node.capacity)
        if CPU in shared:
            waiting[CPU] = max(len(manager.attempts) - shared[CPU] / USUAL_USE, 0.0)
            capacity[CPU] = shared[CPU]
        return choose_units(
            key.demand,
            request.weight,
            self._estimates.duration(request),
            free={**free, **shared},
            waiting_weight=waiting,
            capacity=capacity,
        )


def _rank(each: tuple[ClassKey, ReadyClass]) -> tuple[int, int]:
    key, ready_class = each
    head = ready_class.head()
    return key.priority, head.arrival if head is not None else 0
