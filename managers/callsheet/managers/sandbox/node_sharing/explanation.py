"""Why a command is in its lane, with numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from callsheet.managers.sandbox.node_sharing.command import Lane


@dataclass(frozen=True, slots=True)
class LaneExplanation:
    """What `NodeSharing.explain` tells.

    Attributes:
        lane: None while it is paused.
        use: Cores that it is thought to use in the foreground.
        rank_s: Attained CPU seconds less ageing; a command whose rank has fallen far enough is overdue.
        attained_s: CPU seconds it has attained.
        clock_s: Its execution clock.
        waited_s: Seconds since its start that the clock did not count.
        slowdown: (clock + wait) / clock; infinite before the clock has moved.
        bound: The slowdown that node sharing keeps while that is feasible: 1 + 1 / (beta * weight).
        cores: The node's.
        foreground_use: Cores that the foreground is thought to use.
        claimed_use: Cores of all commands with a claim to the foreground: those that cannot be demoted, new ones, and
            overdue ones. Overdue ones are promoted only while all fit.
        waiting: Commands in the background.
    """

    command_id: Hashable
    lane: Lane | None
    use: float
    rank_s: float
    attained_s: float
    clock_s: float
    waited_s: float
    slowdown: float
    bound: float
    cores: float
    foreground_use: float
    claimed_use: float
    waiting: int

    @property
    def feasible(self) -> bool:
        """Whether the bound can be kept now: all commands with a claim fit the cores together."""
        return self.claimed_use <= self.cores + 1e-9

    def __str__(self) -> str:
        """Returns a sentence for people."""
        if self.lane is None:
            return "it is paused"
        place = f"in the {self.lane.value}, rank {self.rank_s:.3g} CPU seconds, slowdown {self.slowdown:.3g}"
        if self.feasible:
            return f"{place}; at most {self.bound:.3g} while what has a claim fits the cores"
        return (
            f"{place}; the bound of {self.bound:.3g} cannot be kept now: commands with a claim need "
            f"{self.claimed_use:.3g} cores and the node has {self.cores:g}"
        )
