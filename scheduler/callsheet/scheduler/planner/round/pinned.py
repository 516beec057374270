"""Actions that enter no model: those that are pinned to their sandbox's manager."""

from __future__ import annotations

from collections.abc import Iterator

from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import CPU, ActionRequest
from callsheet.scheduler.core.words.plan import Assignment, CoreChange
from callsheet.scheduler.core.work.servability import by_need, service_of
from callsheet.scheduler.planner.fleet.pools import USUAL_USE
from callsheet.scheduler.planner.question.price import choose_units
from callsheet.scheduler.planner.round.estimates import Estimates
from callsheet.scheduler.planner.round.reclaim import Reclaim

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
        """Returns the units of the action, booked; None if they do not fit."""
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
