"""Counts the units wanted of each role of managers: units held, units that waiting work needs, and units of use. Pure.

A fleet that grows and shrinks follows these numbers. An action that waits for the manager of its sandbox is left out
because no other manager can run it. Work that its job's buffer or staleness policy holds up is left out too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.announced_managers import ExpectedRole, ExpectedService
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionRequest, Demand
from callsheet.scheduler.planner.round.sandbox_room import reset_of

MOST_COUNTED: Final = 1_000
"""Trajectories of a job that wait for admission; those beyond it are taken to be like the ones counted."""


@dataclass(slots=True)
class WantedUnits:
    """Units wanted of the managers of a role, by resource.

    Attributes:
        role: Name of the role as it was announced, or the name of its managers' first service.
        managers: Number of managers that may be given work now.
        waiting: Number of actions, and of trajectories that wait to begin, for which there is no capacity.
        held: Units that attempts run with and sandboxes keep.
        waiting_units: The fewest units for the work that waits.
        useful_units: Units beyond those that would shorten work that waits or runs.
    """

    role: str
    managers: int = 0
    waiting: int = 0
    held: Counter[str] = field(default_factory=Counter)
    waiting_units: Counter[str] = field(default_factory=Counter)
    useful_units: Counter[str] = field(default_factory=Counter)

    def add_waiting(self, demand: Demand, count: int) -> None:
        """Counts actions that wait."""
        self.waiting += count
        for entry in demand.entries:
            self.waiting_units[entry.resource] += entry.min_units * count
            self.useful_units[entry.resource] += (entry.max_units - entry.min_units) * count


def wanted_in_parts(state: SchedulerState) -> Generator[None, None, list[WantedUnits]]:
    """Returns what is wanted by role: of those that were announced, and of all others that have registered."""
    roles = {role.name: role for role in state.settings.expected}
    wanted = {name: WantedUnits(name) for name in roles}
    for manager in list(state.managers.values()):
        yield
        role = _role_of(manager, roles)
        told = wanted.setdefault(role.name, WantedUnits(role.name))
        told.managers += manager.accepting
        _count_held(manager, told)
    for request, count in _waiting(state):
        serving = next((each for each in roles.values() if each.may_serve(request.kind, request.service)), None)
        if serving is not None:
            wanted[serving.name].add_waiting(request.demand, count)
    return list(wanted.values())


def _role_of(manager: Manager, roles: dict[str, ExpectedRole]) -> ExpectedRole:
    """The role of a manager; one that was not announced is added."""
    services = [service.description for service in manager.services.values()]
    known = next((role for role in roles.values() if role.is_served_by(services)), None)
    if known is None:
        offered = tuple(ExpectedService(each.name, each.kinds) for each in services)
        name = services[0].name if services else manager.manager_id
        known = roles.setdefault(name, ExpectedRole(name, offered or (ExpectedService(name, frozenset()),)))
    return known


def _count_held(manager: Manager, told: WantedUnits) -> None:
    for trajectory in manager.sandboxes.values():
        told.held.update(trajectory.booked)
    for attempt in manager.attempts.values():
        told.held.update(attempt.granted)
        for entry in attempt.action.request.demand.entries:
            if entry.elastic:
                more = entry.max_units - attempt.granted.get(entry.resource, 0)
                told.useful_units[entry.resource] += max(more, 0)


def _waiting(state: SchedulerState) -> Iterator[tuple[ActionRequest, int]]:
    """Yields actions that wait for capacity of any manager, each with how many are like it."""
    for key, ready in state.ready.classes.items():
        head = ready.head() if ready.count and not key.pinned_to else None
        if head is not None:
            yield head.request, ready.count
    for job_id, waiting in state.waiting_trajectories.items():
        paced = list(islice(may_begin(state, job_id), MOST_COUNTED))
        reset = reset_of(paced[0]) if paced else None
        if reset is not None:
            yield reset.request, len(waiting) if len(paced) == MOST_COUNTED else len(paced)
