"""Actions that could start now, in classes of interchangeable ones, first come first.

Actions of a class ask for the same units of the same service for jobs of the same priority, and are free to go to the
same managers; so if one does not fit, none does, and a planning round costs by the class and not by the action.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from callsheet.scheduler.core.entities import Action
from callsheet.scheduler.core.model import ActionKind, Demand, PriorityClass


class ClassKey(NamedTuple):
    """What interchangeable actions have in common; `pinned_to` is a manager id, empty if they are free."""

    priority: PriorityClass
    kind: ActionKind
    service: str
    pinned_to: str
    demand: Demand


class _Entry(NamedTuple):
    arrival: int
    ticket: int
    action: Action


class ReadyClass:
    """The ready actions of one class, by arrival. Entries whose action has left are skipped and dropped lazily."""

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self._entries: deque[_Entry] = deque()

    def __iter__(self) -> Iterator[Action]:
        return (entry.action for entry in self._entries if entry.action.ready_ticket == entry.ticket)

    def head(self) -> Action | None:
        """The first member."""
        entries = self._entries
        while entries and entries[0].action.ready_ticket != entries[0].ticket:
            entries.popleft()
        return entries[0].action if entries else None

    def insert(self, entry: _Entry) -> None:
        """Adds a member by arrival; a retried action keeps its place."""
        entries = self._entries
        if not entries or entry.arrival >= entries[-1].arrival:
            entries.append(entry)
        elif entry.arrival <= entries[0].arrival:
            entries.appendleft(entry)
        else:
            entries.insert(bisect.bisect(entries, entry.arrival, key=lambda member: member.arrival), entry)


class ReadyQueue:
    """All ready actions by class, and the weight that waits for each resource."""

    def __init__(self) -> None:
        self.classes: dict[ClassKey, ReadyClass] = {}
        self.waiting_weight: dict[str, float] = {}
        self._count = 0
        self._tickets = 0

    def __len__(self) -> int:
        return self._count

    @staticmethod
    def key_of(action: Action) -> ClassKey:
        """The class of an action."""
        request = action.request
        trajectory = action.trajectory
        pinned = trajectory.manager_id if request.needs_sandbox and trajectory is not None else ""
        return ClassKey(action.job.request.priority_class, request.kind, request.service, pinned, request.demand)

    def add(self, action: Action) -> None:
        """Makes an action a member of its class."""
        key = self.key_of(action)
        ready_class = self.classes.get(key)
        if ready_class is None:
            ready_class = self.classes[key] = ReadyClass(key)
        self._tickets += 1
        action.ready_ticket = self._tickets
        ready_class.insert(_Entry(action.arrival, self._tickets, action))
        self._count += 1
        self._weigh(action, action.request.weight)

    def remove(self, action: Action) -> None:
        """Takes an action out, if it is in."""
        if action.ready_ticket:
            action.ready_ticket = 0
            self._count -= 1
            self._weigh(action, -action.request.weight)

    def prune(self) -> None:
        """Drops classes without members."""
        for key in [key for key, ready_class in self.classes.items() if ready_class.head() is None]:
            del self.classes[key]

    def _weigh(self, action: Action, weight: float) -> None:
        for entry in action.request.demand.entries:
            total = self.waiting_weight.get(entry.resource, 0.0) + weight
            self.waiting_weight[entry.resource] = max(total, 0.0)
