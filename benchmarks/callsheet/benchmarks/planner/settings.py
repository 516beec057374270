"""How large the planner benchmark is."""

from __future__ import annotations

from dataclasses import dataclass

MOST_POOLS = 8
# A queued action takes about a kilobyte.
MOST_QUEUED = 10_000_000


@dataclass(frozen=True, slots=True)
class PlannerBenchSettings:
    """Sizes of the planner benchmark.

    Attributes:
        queued: Actions that wait, one measurement for each number.
        nodes: Nodes of the fleet.
        pools: Pools they make, at most 8.
        classes: Classes that the queued actions make.
        rounds: Rounds measured for each number.
        warm_up: Rounds before them.
        ends: Attempts that end between two rounds, and the most that a round starts.
        solver_s: The budget for solving a round.
        seed: Everything is drawn from it.
    """

    queued: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    nodes: int = 3_000
    pools: int = 8
    classes: int = 50
    rounds: int = 200
    warm_up: int = 10
    ends: int = 256
    solver_s: float = 0.008
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "classes", "rounds", "ends"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if not self.queued or min(self.queued) < self.classes or max(self.queued) > MOST_QUEUED:
            raise ValueError(
                f"queued: {self.queued} must each be from {self.classes}, the number of classes, to {MOST_QUEUED}"
            )
        if not 1 <= self.pools <= min(MOST_POOLS, self.nodes):
            raise ValueError(f"pools: {self.pools} must be from 1 to {MOST_POOLS}, and not above the number of nodes")
