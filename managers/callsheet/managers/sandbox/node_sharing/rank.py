"""Order of the commands that share a node.

By levels of attained CPU that grow geometrically, and within a level first come, first served. Few levels are better
than many: lengths are heavy-tailed, so commands that have got little are likely to end soon (least attained service,
Kleinrock 1967; Aalto, Ayesta and Righter 2009), while sharing among commands of like age only makes all of them late.
Multilevel feedback (Corbato 1962) has the same levels. Rank, attained CPU less ageing, says who is overdue.
"""

from __future__ import annotations

import math

from callsheet.managers.sandbox.node_sharing.settings import NodeSharingSettings

# In its first quantum, or in a turn that ends a stall: nobody takes its place.
NEW_LEVEL = 0
# In the foreground because it was overdue.
OVERDUE_LEVEL = 1
_FIRST_LATER_LEVEL = 2
# An overdue command is one whose rank fell to this part of a quantum; below 1, so that one that has just used up its
# first quantum is not overdue at once.
_CLAIM_QUANTA = 0.5


def level_of(attained_s: float, settings: NodeSharingSettings) -> int:
    """Returns the level of a command that has attained so many CPU seconds, divided by its weight; lower goes first."""
    if attained_s < settings.quantum_s * (1.0 - 1e-9):
        return NEW_LEVEL
    return _FIRST_LATER_LEVEL + math.floor(math.log(attained_s / settings.quantum_s, settings.growth) + 1e-9)


def claim_rank(settings: NodeSharingSettings) -> float:
    """Returns the rank, in CPU seconds, at and below which a command is overdue."""
    return _CLAIM_QUANTA * settings.quantum_s


def quantum_end(level: int, attained_s: float, settings: NodeSharingSettings) -> float:
    """Returns the attained CPU seconds, divided by its weight, at which a command is compared with others.

    Args:
        level: Its level in the foreground.
        attained_s: Its attained CPU seconds, divided by its weight.
        settings: The node's.
    """
    if level == OVERDUE_LEVEL:
        return attained_s + max(_CLAIM_QUANTA * settings.quantum_s, settings.claim_growth * attained_s)
    end_s: float = settings.quantum_s * settings.growth ** max(0, level - _FIRST_LATER_LEVEL + 1)
    return end_s


def ageing(use: float, settings: NodeSharingSettings) -> float:
    """Returns by how much a second of waiting lowers the rank of a command of this use.

    A command of many cores would attain that much more in a second, so its wait counts more: the bound on the slowdown
    is the same for all.
    """
    return settings.beta * max(1.0, use)
