"""How many nodes a role is to have, by what its scheduler wants. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings


@dataclass(frozen=True, slots=True)
class RoleWanted:
    """What a scheduler wants of a role, in units by resource.

    Attributes:
        waiting: Actions and trajectories without room.
        held: Units that attempts run with and sandboxes keep.
        waiting_units: The fewest units for what waits.
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
