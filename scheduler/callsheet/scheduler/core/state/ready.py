"""Actions that could start now, in classes of interchangeable ones, first come first.

Actions of a class ask for the same units of the same service for the same job. They are alike in size, as far as that
is known before they run, and free to go to the same managers. So if one does not fit, none does, and a planning round
costs by the class and not by the action. Actions that are pinned to a manager enter no model, and their class is only
their demand.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.set_up_index import SetUpIndex
from callsheet.scheduler.core.words.model import CPU, ActionKind, Demand, PriorityClass

_SLACK = 64


class ClassKey(NamedTuple):
    """Common properties of interchangeable actions.

    Attributes:
        pinned_to: A manager id; empty if they are free to go anywhere, and then `job`, `label` and `size` are set.
        size: What whoever `sort_by_size` was given says; 0 if nobody can tell.
        set_up: The set-up they ask for, if it was kept anywhere when they became ready: else no node is better than
            another, and a class for each would only be work.
    """

    priority: PriorityClass
    kind: ActionKind
    service: str
    pinned_to: str
    demand: Demand
    job: str = ""
    label: str = ""
    size: int = 0
    set_up: str = ""


class _Entry(NamedTuple):
    arrival: int
    ticket: int
    action: Action


class ReadyClass:
    """The ready actions of one class, by arrival. Entries whose action has left are skipped and dropped lazily.

    Attributes:
        count: Members.
        weight: Sum of their weights.
        since: Sum of the times since when they are queued.
    """

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.count = 0
        self.weight = 0.0
        self.since = 0.0
        self._entries: deque[_Entry] = deque()

    def __iter__(self) -> Iterator[Action]:
        self.head()
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
        if len(entries) > 2 * self.count + _SLACK:
            # Those behind a head that stays would never be dropped otherwise.
            live = [each for each in entries if each.action.ready_ticket == each.ticket]
            entries = self._entries = deque(live)
        if not entries or entry.arrival >= entries[-1].arrival:
            entries.append(entry)
        elif entry.arrival <= entries[0].arrival:
            entries.appendleft(entry)
        else:
            entries.insert(bisect.bisect(entries, entry.arrival, key=lambda member: member.arrival), entry)


class ReadyQueue:
    """All ready actions by class, and the weight that waits for each resource.

    Attributes:
        arrived_for_cores: Weight that ever became ready for cores; a planner derives their load from it.
    """

    def __init__(
        self, kept_set_ups: SetUpIndex | None = None, service_demands: Mapping[str, Demand] | None = None
    ) -> None:
        """Makes an empty queue.

        Args:
            kept_set_ups: Those that make some nodes better than others; None for none.
            service_demands: What an action takes at least, by the name of its service; None for none.
        """
        self._kept_set_ups = kept_set_ups or SetUpIndex()
        self._service_demands = {} if service_demands is None else service_demands
        self.classes: dict[ClassKey, ReadyClass] = {}
        self.waiting_weight: dict[str, float] = {}
        self.arrived_for_cores = 0.0
        self._size_of: Callable[[Action], int] | None = None
        self._class_of: dict[int, ReadyClass] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._class_of)

    def sort_by_size(self, size_of: Callable[[Action], int]) -> None:
        """Puts actions that are free to go anywhere into classes of alike size from now on, and those there are."""
        if self._size_of == size_of:
            return
        self._size_of = size_of
        actions = [action for ready_class in self.classes.values() for action in ready_class]
        for action in actions:
            self.remove(action)
        self.prune()
        for action in actions:
            self.add(action)
            self._count_arrival(action, -action.request.weight)

    @staticmethod
    def key_of(action: Action, size: int = 0, set_up: str = "") -> ClassKey:
        """The class of an action, of a given size, and with a set-up that is kept somewhere."""
        request = action.request
        priority = action.job.request.priority_class
        trajectory = action.trajectory
        if request.needs_sandbox and trajectory is not None:
            return ClassKey(priority, request.kind, request.service, trajectory.manager_id, request.demand)
        job = request.key.job_id
        return ClassKey(priority, request.kind, request.service, "", request.demand, job, request.label, size, set_up)

    def add(self, action: Action) -> None:
        """Makes an action a member of its class; it takes the newest demand of its service, however long it waited."""
        action.request = action.request.with_service_demand(self._service_demands.get(action.request.service))
        size_of, set_up = self._size_of, action.request.set_up
        key = self.key_of(
            action,
            0 if size_of is None or action.request.needs_sandbox else size_of(action),
            set_up if set_up in self._kept_set_ups else "",
        )
        ready_class = self.classes.get(key)
        if ready_class is None:
            ready_class = self.classes[key] = ReadyClass(key)
        self._tickets += 1
        action.ready_ticket = self._tickets
        ready_class.insert(_Entry(action.arrival, self._tickets, action))
        self._class_of[self._tickets] = ready_class
        weight = action.request.weight
        ready_class.count += 1
        ready_class.weight += weight
        ready_class.since += action.queued_since
        for entry in action.request.demand.entries:
            self.waiting_weight[entry.resource] = self.waiting_weight.get(entry.resource, 0.0) + weight
        self._count_arrival(action, weight)

    def remove(self, action: Action) -> None:
        """Takes an action out, if it is in."""
        if not action.ready_ticket:
            return
        ready_class = self._class_of.pop(action.ready_ticket)
        action.ready_ticket = 0
        weight = action.request.weight
        ready_class.count -= 1
        # Rounding must not pile up over millions of members.
        ready_class.weight = ready_class.weight - weight if ready_class.count else 0.0
        ready_class.since = ready_class.since - action.queued_since if ready_class.count else 0.0
        for entry in action.request.demand.entries:
            self.waiting_weight[entry.resource] = max(self.waiting_weight[entry.resource] - weight, 0.0)

    def class_of(self, action: Action) -> ReadyClass:
        """The class of a ready action."""
        return self._class_of[action.ready_ticket]

    def prune(self) -> None:
        """Drops classes without members."""
        for key in [key for key, ready_class in self.classes.items() if not ready_class.count]:
            del self.classes[key]

    def _count_arrival(self, action: Action, weight: float) -> None:
        if any(entry.resource == CPU for entry in action.request.demand.entries):
            self.arrived_for_cores += weight
