"""The units that a node held for an overdue action keeps from younger actions.

Units that trajectories hold come back only as these trajectories go on. While such units are short, only they are
kept. To keep a core as well would stop the very rewards whose trajectories hold the memory. Later only units that
running attempts give back by themselves are short. Then all units that the action needs are kept, so that no other
action takes the memory while a core is awaited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from callsheet.scheduler.core.state.entities import Manager


def held_resources(needed: Mapping[str, int], free: Mapping[str, int], managers: Iterable[Manager]) -> frozenset[str]:
    """Resources of which a node keeps what it has.

    Args:
        needed: The fewest units of the overdue action that the node must have free.
        free: Units of the node that are free.
        managers: The node's managers, whose trajectories' sandboxes may hold units.
    """
    short = {resource for resource, units in needed.items() if free.get(resource, 0) < units}
    lasting = short & kept_by_trajectories(managers)
    return frozenset(lasting or needed)


def kept_by_trajectories(managers: Iterable[Manager]) -> frozenset[str]:
    """Resources of which some sandbox of these managers holds units between its actions."""
    return frozenset(
        resource for manager in managers for trajectory in manager.sandboxes.values() for resource in trajectory.held
    )
