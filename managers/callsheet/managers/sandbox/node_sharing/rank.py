"""Rank of a command among those that share a node: lower is served first.

Least attained service (Kleinrock 1967; Aalto, Ayesta and Righter 2009: optimal for the mean where durations are unknown
and hazard rates fall), with ageing that bounds the slowdown, and geometric levels as in multilevel feedback (Corbato
1962).
"""

from __future__ import annotations

import math

from callsheet.managers.sandbox.node_sharing.settings import NodeSharingSettings

# New commands in their first quantum, and turns that end a stall: nobody takes their place.
PROTECTED_LEVEL = -1
CLAIM_LEVEL = 0
# An overdue command is one whose rank fell to this part of a quantum; below 1, so that one that has just used up its
# first quantum is not overdue at once.
_CLAIM_QUANTA = 0.5


def level_of(rank_s: float, settings: NodeSharingSettings) -> int:
    """Returns the geometric level of a rank; `CLAIM_LEVEL` for commands that are overdue."""
    if rank_s <= claim_rank(settings):
        return CLAIM_LEVEL
    return max(1, 1 + math.floor(math.log(rank_s / settings.quantum_s, settings.growth) + 1e-9))


def claim_rank(settings: NodeSharingSettings) -> float:
    """Returns the rank, in CPU seconds, at and below which a command has a claim to the foreground."""
    return _CLAIM_QUANTA * settings.quantum_s


def quantum(rank_s: float, attained_s: float, settings: NodeSharingSettings) -> float:
    """Returns the CPU seconds of rank that a command may add before it is compared with others.

    Args:
        rank_s: Its rank now.
        attained_s: Its attained CPU seconds, divided by its weight.
        settings: The node's.
    """
    level = level_of(rank_s, settings)
    boundary_s: float = settings.quantum_s * settings.growth**level
    shortest = _CLAIM_QUANTA * settings.quantum_s
    if level > CLAIM_LEVEL:
        return max(shortest, boundary_s - rank_s)
    return max(shortest, boundary_s - rank_s, settings.claim_growth * attained_s)


def ageing(use: float, settings: NodeSharingSettings) -> float:
    """Returns by how much a second of waiting lowers the rank of a command of this use.

    A command of many cores would attain that much more in a second, so its wait counts more: the bound on the slowdown
    is the same for all. Rounded up to a power of two, so that waiting commands keep their order within few queues.
    """
    return settings.beta * 2.0 ** math.ceil(math.log2(max(1.0, use)) - 1e-9)
