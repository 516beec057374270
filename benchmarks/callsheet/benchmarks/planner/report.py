"""What the planner benchmark found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded

ROUND_P99_TARGET_MS = 25.0


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Rounds with one length of the queue.

    Attributes:
        queued: Actions that wait when a round begins; the fewest of all rounds, as with `classes`.
        nodes: Of the fleet.
        pools: Pools they make.
        classes: Classes that the waiting actions make.
        round_p50_ms: From the core's state to a plan, model building and placement included.
        round_p99_ms: The same.
        round_cpu_p50_ms: CPU time of the same; beside other load it tells more than wall time.
        round_cpu_p99_ms: The same.
        gap: (objective - bound) / |bound|, the worst of all rounds.
        starts_per_round: Actions started by a round, on average.
    """

    queued: int
    nodes: int
    pools: int
    classes: int
    round_p50_ms: float
    round_p99_ms: float
    round_cpu_p50_ms: float
    round_cpu_p99_ms: float
    gap: float
    starts_per_round: float

    @property
    def met(self) -> bool:
        """Whether rounds are as short as they should be."""
        return self.round_p99_ms <= ROUND_P99_TARGET_MS


@dataclass(frozen=True, slots=True)
class PlannerBenchReport:
    """Results by length of the queue."""

    seed: int
    solver_s: float
    rounds: int
    results: tuple[QueueResult, ...]

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each length."""
        return [rounded(asdict(each), digits=4) for each in self.results]
