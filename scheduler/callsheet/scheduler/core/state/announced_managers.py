"""Managers that are not there: those that were announced, those that were there before a restart, and lost ones.

Actions that only the first two may serve wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from callsheet.scheduler.core.state.entities import Attempt, Trajectory
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.records import ManagerLeaves
from callsheet.scheduler.core.words.registration import ServiceDescription, is_meant
from callsheet.v1.names import IMAGE_SERVICE_PREFIX

ANY_NAME = ""
UNKNOWN = ""
"""Incarnation of a manager for an attempt that was dispatched before the journal had a place for it."""


@dataclass(frozen=True, slots=True)
class LostManager:
    """A manager that fell silent, or that another process took the place of, and has not come back.

    Attributes:
        node_id: Its node; empty where that was not known, as it had not registered since the scheduler's start.
        attempts: What it ran when it was given up.
        sandboxes: What it held then.
    """

    manager_id: str
    node_id: str
    lost_at: float
    attempts: int
    sandboxes: int


@dataclass(frozen=True, slots=True)
class ExpectedService:
    """Something that an announced manager will do.

    Attributes:
        name: The service's name; `ANY_NAME` where it is not known yet, `IMAGE_SERVICE_PREFIX` for those with an image.
        kinds: The kinds of action it serves.
    """

    name: str
    kinds: frozenset[ActionKind]

    def may_serve(self, kind: ActionKind, name: str) -> bool:
        """Returns whether the service may serve an action that asks for this name; an empty name asks for any."""
        if kind not in self.kinds:
            return False
        if self.name == IMAGE_SERVICE_PREFIX:
            return name.startswith(IMAGE_SERVICE_PREFIX)
        return self.name == ANY_NAME or is_meant(self.name, name)


@dataclass(frozen=True, slots=True)
class ExpectedRole:
    """A manager that was announced.

    Attributes:
        name: For people, for instance "inference".
        services: Its services. The first one distinguishes its managers from others, which may have some of the rest.
    """

    name: str
    services: tuple[ExpectedService, ...]

    def may_serve(self, kind: ActionKind, name: str) -> bool:
        """Returns whether the role's manager may serve an action."""
        return any(service.may_serve(kind, name) for service in self.services)

    def is_served_by(self, services: Iterable[ServiceDescription]) -> bool:
        """Returns whether a manager with these services is the one that was announced."""
        mark = self.services[0]
        return any(mark.kinds <= each.kinds and mark.name in (ANY_NAME, each.name) for each in services)


@dataclass(slots=True)
class Awaited:
    """Attempts and sandboxes of a manager that has not registered since a restart of the scheduler.

    Attributes:
        attempts: The manager's attempts in the journal, by the incarnation of the manager that they were sent to.
        trajectories: Trajectories whose sandboxes the manager had.
        drain: The request to leave that the manager had; None if it had none.
    """

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    trajectories: list[Trajectory] = field(default_factory=list)
    drain: ManagerLeaves | None = None

    def take_attempts(self, *, but_of: str = "") -> list[Attempt]:
        """Takes out and returns the attempts of all incarnations but one; attempts of an unknown one may be of that."""
        kept = {but_of, UNKNOWN} if but_of else ()
        others = [incarnation for incarnation in self.attempts if incarnation not in kept]
        return [attempt for incarnation in others for attempt in self.attempts.pop(incarnation)]

    def with_sandboxes(self, manager_id: str) -> list[Trajectory]:
        """Those trajectories that have not been parted from their sandboxes since."""
        return [each for each in self.trajectories if each.manager_id == manager_id]
