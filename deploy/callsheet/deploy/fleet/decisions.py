"""What becomes of the nodes of a role at one look. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callsheet.deploy.fleet.node import FleetNode, NodePhase


@dataclass(frozen=True, slots=True)
class ManagerSeen:
    """A manager as its scheduler sees it.

    Attributes:
        connected: Whether its stream is up.
        leaving: Whether it was told to leave, or leaves.
        sandboxes: Sandboxes that it holds.
        attempts: Attempts that it runs.
        leaves_by: When it leaves at the latest, in seconds since the epoch; None: once its last sandbox has ended.
    """

    connected: bool
    leaving: bool
    sandboxes: int = 0
    attempts: int = 0
    leaves_by: float | None = None


@dataclass(frozen=True, slots=True)
class RoleSteps:
    """What to do.

    Attributes:
        start: So many nodes more.
        drain: Those that are to leave once their last sandbox ends.
        stop: Those of which nothing is left, or nothing has begun.
    """

    start: int = 0
    drain: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


def decide(nodes: Sequence[FleetNode], managers: Mapping[str, ManagerSeen], target: int, most: int) -> RoleSteps:
    """Returns what brings the nodes of a role to a number.

    A node leaves by its scheduler's drain alone, which waits for its last trajectory: first one that has none, then the
    newest. One that nobody can tell about, or whose manager is away, is left as it is and counts.

    Args:
        nodes: What its provider lists, the oldest first.
        managers: What its scheduler lists, by id.
        target: How many are to be there, besides those that leave.
        most: How many there may be in all.
    """
    over = [node.name for node in nodes if node.phase is NodePhase.ENDED]
    leaving = {name for name, manager in managers.items() if manager.leaving}
    staying = [node for node in nodes if node.phase is not NodePhase.ENDED and node.name not in leaving]
    surplus = len(staying) - target
    if surplus <= 0:
        room = most - (len(nodes) - len(over))
        return RoleSteps(start=max(0, min(-surplus, room)), stop=tuple(over))
    unused = [node.name for node in reversed(staying) if _has_not_begun(node, managers)][:surplus]
    in_use = [
        node.name
        for node in reversed(staying)
        if node.phase is NodePhase.SERVING and node.name in managers and managers[node.name].connected
    ]
    in_use.sort(key=lambda name: (managers[name].sandboxes, managers[name].attempts))
    return RoleSteps(drain=tuple(in_use[: surplus - len(unused)]), stop=(*over, *unused))


def _has_not_begun(node: FleetNode, managers: Mapping[str, ManagerSeen]) -> bool:
    return node.phase in (NodePhase.WAITING, NodePhase.STARTING) and node.name not in managers
