"""Why a command is in its lane, with numbers: what node sharing keeps of it, looked at from outside."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from callsheet.managers.sandbox.node_sharing import Lane, NodeSharing


@dataclass(frozen=True, slots=True)
class LaneExplanation:
    """What `explain` tells.

    Attributes:
        lane: Its lane.
        use: Cores that it is thought to use in the foreground.
        rank_s: Attained CPU seconds less ageing; a command whose rank has fallen far enough is overdue.
        attained_s: CPU seconds it has attained.
        clock_s: Its execution clock.
        waited_s: Seconds since its start that the clock did not count.
        bound: The slowdown that node sharing keeps while that is feasible: 1 + 1 / (beta * weight).
        cores: The node's.
        claimed_use: Cores of all commands with a claim to the foreground: those that cannot be demoted, new ones, and
            overdue ones. Overdue ones are promoted only while all fit.
    """

    lane: Lane | None
    use: float
    rank_s: float
    attained_s: float
    clock_s: float
    waited_s: float
    bound: float
    cores: float
    claimed_use: float

    @property
    def feasible(self) -> bool:
        """Whether the bound can be kept now: all commands with a claim fit the cores together."""
        return self.claimed_use <= self.cores + 1e-9


def explain(sharing: NodeSharing, command_id: Hashable, now: float) -> LaneExplanation:
    """Returns why a command is in its lane, and whether its slowdown is bounded now."""
    member, settings, granted = sharing._members[command_id], sharing._settings, sharing._granted_at(now)
    return LaneExplanation(
        lane=member.lane,
        use=member.use,
        rank_s=member.rank(now, granted),
        attained_s=member.extrapolated(granted),
        clock_s=member.clock(granted),
        waited_s=member.wait(now, granted),
        bound=1.0 + 1.0 / (settings.beta * member.command.weight) if settings.beta else math.inf,
        cores=sharing._cores,
        claimed_use=sharing._claims.use,
    )


def foreground_use(sharing: NodeSharing) -> float:
    """Returns the cores that the foreground is thought to use."""
    return sharing._use
