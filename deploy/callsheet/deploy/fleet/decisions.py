"""How many nodes a role is to have, and what becomes of them at one look. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from callsheet.deploy.fleet.node import FleetNode, NodePhase
from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings


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
    """Steps that bring a role to its number of nodes.

    Attributes:
        start: Number of nodes to start.
        drain: Nodes that are to leave once their last sandbox ends.
        stop: Nodes of which nothing is left, or on which nothing has begun.
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


@dataclass(frozen=True, slots=True)
class RoleWanted:
    """Units that a scheduler wants of a role, by resource.

    Attributes:
        waiting: Actions and trajectories for which there is no capacity.
        held: Units that attempts run with and sandboxes keep.
        waiting_units: The fewest units for the work that waits.
    """

    waiting: int
    held: Mapping[str, int]
    waiting_units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many nodes a role is to have, and since when another number would be right. Times are the monotonic clock's.

    Attributes:
        target: So many.
        short_since: Since when more are needed; None if they are not.
        ample_since: Since when fewer are enough; None if they are not.
        peak: The most that was needed since then.
    """

    target: int
    short_since: float | None = None
    ample_since: float | None = None
    peak: int = 0


def needed_nodes(role: RoleSettings, wanted: RoleWanted, headroom: float = 1.0) -> int:
    """Nodes that have room for so many times what is held and waits."""
    needed = 1 if wanted.waiting else 0
    for resource, units in role.units.items():
        asked = wanted.held.get(resource, 0) + wanted.waiting_units.get(resource, 0)
        if asked and units:
            needed = max(needed, math.ceil(asked * headroom / units))
    return needed


def advance(scaling: Scaling, role: RoleSettings, wanted: RoleWanted, fleet: FleetSettings, now: float) -> Scaling:
    """Returns what is so at a look.

    More nodes come once they were needed for as long as the fleet's patience, fewer once they were enough for its
    cooldown: then as many stay as were needed at the most meanwhile. For leaving, needs count with headroom, so that a
    number that was just reached is not left at once.
    """
    needed = min(max(needed_nodes(role, wanted), role.least), role.most)
    enough = min(max(needed_nodes(role, wanted, fleet.headroom), role.least), role.most)
    if needed > scaling.target:
        since = now if scaling.short_since is None else scaling.short_since
        if now - since >= fleet.patience_s:
            return Scaling(needed)
        return replace(scaling, short_since=since, ample_since=None, peak=0)
    if enough < scaling.target:
        since = now if scaling.ample_since is None else scaling.ample_since
        peak = max(scaling.peak, enough)
        if now - since >= fleet.cooldown_s:
            return Scaling(peak)
        return replace(scaling, short_since=None, ample_since=since, peak=peak)
    return Scaling(scaling.target)
