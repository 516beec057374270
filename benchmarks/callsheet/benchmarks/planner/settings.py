"""How large the planner benchmark is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.common import whole_numbers
from callsheet.options.declaration import AtLeast, Setting, check_least

MOST_POOLS = 8
# A queued action takes about a kilobyte.
MOST_QUEUED = 10_000_000


@dataclass(frozen=True, slots=True)
class PlannerBenchSettings:
    """Sizes of the planner benchmark.

    Attributes:
        warm_up: Rounds before them.
        ends: Attempts that end between two rounds, and the most that a round starts.
    """

    queued: Annotated[
        tuple[int, ...],
        Setting(
            "Lengths of the queue, with commas.", default="1000,10000,100000,1000000", text=str, parse=whole_numbers
        ),
    ] = (1_000, 10_000, 100_000, 1_000_000)
    nodes: Annotated[int, Setting("Nodes of the fleet.", least=1)] = 3_000
    pools: Annotated[int, Setting("Pools they make, at most 8.", least=1)] = 8
    classes: Annotated[int, Setting("Classes of the queued actions.", least=1)] = 50
    rounds: Annotated[int, Setting("Rounds measured for each length.", least=1)] = 200
    warm_up: int = 10
    ends: Annotated[int, AtLeast(1)] = 256
    solver_s: Annotated[
        float,
        Setting(
            "The budget for solving a round.", flag="--solver-ms", default=8.0, least=0, parse=lambda ms: ms / 1000.0
        ),
    ] = 0.008
    seed: Annotated[int, Setting("Everything is drawn from it.", least=0)] = 0

    def __post_init__(self) -> None:
        check_least(self)
        if not self.queued or min(self.queued) < self.classes or max(self.queued) > MOST_QUEUED:
            raise ValueError(
                f"queued: {self.queued} must each be from {self.classes}, the number of classes, to {MOST_QUEUED}"
            )
        if not 1 <= self.pools <= min(MOST_POOLS, self.nodes):
            raise ValueError(f"pools: {self.pools} must be from 1 to {MOST_POOLS}, and not above the number of nodes")
