"""The first planner: first come, first served, on the node where an action fits best.

Ready actions are taken by priority and arrival. One that does not fit is passed over for others (backfilling); when it
has waited too long, the node that comes closest is held for it, so that nothing that fits an idle node starves. Every
trajectory is admitted at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.entities import Action, Manager, Trajectory
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.ready import ClassKey, ReadyQueue
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import CPU
from callsheet.scheduler.core.words.plan import Assignment, Plan
from callsheet.scheduler.core.work.admission import first_actions
from callsheet.scheduler.core.work.servability import by_need, service_of
from callsheet.scheduler.planner.question.price import choose_units
from callsheet.scheduler.planner.round.holding import held_resources
from callsheet.scheduler.planner.round.reclaim import Reclaim, give_back
from callsheet.scheduler.planner.round.review import Review


@dataclass(frozen=True, slots=True)
class FirstComePlanner:
    """See the module's docstring.

    Attributes:
        dispatch_cap: Assignments per round; the rest waits for the next round.
        hold_after: Seconds an action waits before a node is held for it.
    """

    dispatch_cap: int = 2048
    hold_after: float = 5.0

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes assignments; see `Planner.plan`."""
        return self._decide(state, _Round(state, now, self.hold_after))

    def review(self, state: SchedulerState, now: float) -> Review:
        """Returns the next round as it would be; see `Reviewer.review`."""
        round_ = _Round(state, now, self.hold_after)
        return Review(self._decide(state, round_), state, round_.kept_for)

    def _decide(self, state: SchedulerState, round_: _Round) -> Plan:
        state.ready.prune()
        assignments: list[Assignment] = []
        waiting = [trajectory for job_id in state.waiting_trajectories for trajectory in may_begin(state, job_id)]
        admitted = tuple(trajectory.key for trajectory in waiting)
        heads = _heads(state, waiting)
        while heads:
            if len(assignments) >= self.dispatch_cap:
                return Plan(tuple(assignments), truncated=True, admitted=admitted)
            priority, _, order, key, members, action = heads[0]
            assignment = round_.place(key, action)
            if assignment is None:
                round_.make_room(key)
            following = next(members, None) if assignment is not None else None
            if assignment is not None:
                assignments.append(assignment)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (priority, following.arrival, order, key, members, following))
        changes = round_.reclaim.changes or (give_back(state) if state.narrowed_attempts else ())
        return Plan(tuple(assignments), truncated=bool(changes), admitted=admitted, core_changes=changes)


_Head = tuple[int, int, int, ClassKey, Iterator[Action], Action]
_Rank = tuple[bool, float, float, float]


def _heads(state: SchedulerState, beginning: Sequence[Trajectory]) -> list[_Head]:
    """The first member of each class, with those after it, as a heap; the first actions of new trajectories alone."""
    heads: list[_Head] = []
    for key, ready_class in state.ready.classes.items():
        members = iter(ready_class)
        head = next(members, None)
        if head is not None:
            heads.append((key.priority, head.arrival, len(heads), key, members, head))
    for trajectory in beginning:
        for action in first_actions(trajectory):
            key = ReadyQueue.key_of(action)
            heads.append((key.priority, action.arrival, len(heads), key, iter(()), action))
    heapq.heapify(heads)
    return heads


class _Round:
    """Scratch books of one planning round: what would be free after the assignments so far.

    Attributes:
        kept_for: See `Review`.
        reclaim: What `make_room` took.
    """

    def __init__(self, state: SchedulerState, now: float, hold_after: float) -> None:
        self._state = state
        self._now = now
        self._hold_after = hold_after
        self._free: dict[str, dict[str, int]] = {}
        self._busy: dict[tuple[str, str], int] = {}
        self._held: dict[str, set[str]] = {}
        self._held_for: dict[str, Action] = {}
        self.kept_for: dict[ClassKey, Action] = {}
        self._known_hosts: dict[ClassKey, list[tuple[Manager, Service]]] = {}
        self._capacity: dict[str, int] = {}
        self._waiting = dict(state.ready.waiting_weight)
        self.reclaim = Reclaim(state)

    def place(self, key: ClassKey, action: Action) -> Assignment | None:
        """The best-fitting assignment of an action, booked; None if it fits nowhere now."""
        minimum = key.demand.minimum()
        ranked = [
            (rank, manager, service)
            for manager, service in self._hosts(key)
            # Pinned actions are let through: by going on they free what their trajectories hold.
            if key.pinned_to or not self._keeps(manager.node, minimum)
            if (rank := self._rank(manager, service, action, by_need(self._state, manager, key, minimum))) is not None
        ]
        if not ranked:
            if self._held and not key.pinned_to:
                self._note_kept(key, action, minimum)
            if self._now - action.queued_since >= self._hold_after:
                self._hold_for(key, action, minimum)
            return None
        _, manager, service = min(ranked, key=lambda each: each[0])
        return self._book(manager, service, key, action)

    def make_room(self, key: ClassKey) -> None:
        """Takes cores from running attempts for a class of which one fits nowhere."""
        if self._state.elastic_attempts:
            self.reclaim.make_room(key, self._free)

    def _hosts(self, key: ClassKey) -> list[tuple[Manager, Service]]:
        """The managers that a class could go to, with their services for it."""
        hosts = self._known_hosts.get(key)
        if hosts is None:
            managers = self._state.managers
            names = [key.pinned_to] if key.pinned_to else managers
            hosts = self._known_hosts[key] = [
                (manager, service)
                for manager in (managers[name] for name in names if name in managers)
                if manager.takes(key.pinned_to)
                if (service := service_of(manager, key.kind, key.service)) is not None
                if manager.node.could_fit(service.booked(key.demand.minimum()))
            ]
        return hosts

    def _keeps(self, node: Node, minimum: dict[str, int]) -> bool:
        return not self._held.get(node.node_id, set()).isdisjoint(minimum)

    def _note_kept(self, key: ClassKey, action: Action, minimum: dict[str, int]) -> None:
        """Notes for whom units are kept that a member of a class would take otherwise."""
        for manager, service in self._hosts(key):
            needed = by_need(self._state, manager, key, minimum)
            if self._keeps(manager.node, minimum) and self._rank(manager, service, action, needed) is not None:
                self.kept_for[key] = self._held_for[manager.node.node_id]
                return

    def _rank(self, manager: Manager, service: Service, action: Action, minimum: dict[str, int]) -> _Rank | None:
        """How well an action would fit, the best first; None if it does not."""
        node = manager.node
        if service.no_room and service.instances <= service.busy:
            return None
        slots = service.free_slots
        planned = self._busy.get((manager.manager_id, service.description.name), 0)
        if slots is not None and slots - planned <= 0:
            return None
        free = self._node_free(node)
        left = 0.0
        shared = service.description.shared
        for resource, units in minimum.items():
            if shared and resource in shared:
                if units > shared[resource]:
                    return None
                continue
            if free.get(resource, 0) < units:
                return None
            left += (free[resource] - units) / max(node.capacity[resource], 1)
        avoided = action.failed_on == manager.manager_id
        # A pool is never full, so what shares it is spread instead of packed.
        crowd = (len(manager.sandboxes) + planned) / max(shared.get(CPU, 1), 1) if shared else 0.0
        return avoided, crowd, left, float(planned + service.busy)

    def _node_free(self, node: Node) -> dict[str, int]:
        free = self._free.get(node.node_id)
        if free is None:
            free = self._free[node.node_id] = dict(node.free)
        return free

    def _book(self, manager: Manager, service: Service, key: ClassKey, action: Action) -> Assignment:
        free = self._node_free(manager.node)
        shared = service.description.shared
        demand = key.demand
        for entry in demand.entries:
            self._waiting[entry.resource] = max(self._waiting.get(entry.resource, 0.0) - action.request.weight, 0.0)
        if any(entry.elastic for entry in demand.entries):
            request = action.request
            held = self._held.get(manager.node.node_id)
            offered = {**free, **shared} if shared else free
            units = choose_units(
                demand,
                request.weight,
                request.expected_duration,
                # What is kept for an older action widens nobody.
                free={name: count for name, count in offered.items() if name not in held} if held else offered,
                waiting_weight=self._waiting,
                capacity=self._total_capacity(),
            )
        else:
            units = demand.minimum()
        for resource, count in service.booked(by_need(self._state, manager, key, units)).items():
            free[resource] -= count
        slot = (manager.manager_id, service.description.name)
        self._busy[slot] = self._busy.get(slot, 0) + 1
        return Assignment(action.key, manager.manager_id, units, why="first come, first served: the best fit")

    def _total_capacity(self) -> dict[str, int]:
        if not self._capacity:
            for node in self._state.nodes.values():
                for resource in node.capacity:
                    units = max(node.available(resource), 0) + node.pooled.get(resource, 0)
                    self._capacity[resource] = self._capacity.get(resource, 0) + units
        return self._capacity

    def _hold_for(self, key: ClassKey, action: Action, minimum: dict[str, int]) -> None:
        """Keeps what the action needs on the node that lacks the least of it from younger, unpinned actions."""
        nearest: tuple[float, str, dict[str, int]] | None = None
        for manager, service in self._hosts(key):
            node, needed = manager.node, service.booked(by_need(self._state, manager, key, minimum))
            if needed and node.node_id not in self._held:
                candidate = (_shortage(self._node_free(node), needed), node.node_id, needed)
                nearest = min(nearest or candidate, candidate, key=lambda each: each[:2])
        if nearest is not None:
            node = self._state.nodes[nearest[1]]
            managers = [self._state.managers[name] for name in node.managers if name in self._state.managers]
            self._held_for[nearest[1]] = action
            self._held[nearest[1]] = set(held_resources(nearest[2], self._node_free(node), managers))


def _shortage(free: dict[str, int], minimum: dict[str, int]) -> float:
    """Missing units, cores counted heavier than megabytes by what a node usually has of them."""
    return sum(
        max(units - free.get(resource, 0), 0) * (1024.0 if resource == CPU else 1.0)
        for resource, units in minimum.items()
    )
