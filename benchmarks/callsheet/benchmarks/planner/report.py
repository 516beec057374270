"""What the planner benchmark found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from rich.table import Table

# The longest queue's median round by that of 10,000, and any queue's 99th percentile by its median; in CPU time.
MOST_GROWTH = 1.1
MOST_TAIL = 2.0
_COMPARED = 10_000
_COLUMNS: tuple[Column, ...] = (
    ("nodes", "nodes", ",d"),
    ("pools", "pools", "d"),
    ("classes", "classes", "d"),
    ("p50 ms", "round_p50_ms", ".1f"),
    ("p99 ms", "round_p99_ms", ".1f"),
    ("CPU p50", "round_cpu_p50_ms", ".1f"),
    ("CPU p99", "round_cpu_p99_ms", ".1f"),
    ("gap", "gap", ".1e"),
    ("starts", "starts_per_round", ".0f"),
)


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


@dataclass(frozen=True, slots=True)
class PlannerBenchReport(BenchmarkReport):
    """Results by length of the queue."""

    seed: int
    solver_s: float
    rounds: int
    results: tuple[QueueResult, ...]

    @property
    def bars(self) -> Sequence[Bar]:
        """Rounds are judged by ratios of CPU time, which other machines and other load change least."""
        tails = [
            Bar(f"{each.queued:,} queued: p99 by p50", each.round_cpu_p99_ms / each.round_cpu_p50_ms, at_most=MOST_TAIL)
            for each in self.results
        ]
        p50_ms = {each.queued: each.round_cpu_p50_ms for each in self.results}
        longest = max(p50_ms)
        if longest > _COMPARED in p50_ms:
            growth = p50_ms[longest] / p50_ms[_COMPARED]
            tails.append(Bar(f"p50: {longest:,} queued by {_COMPARED:,}", growth, at_most=MOST_GROWTH))
        return tails

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each length."""
        return [rounded(asdict(each), digits=4) for each in self.results]

    def tables(self) -> Iterator[Table]:
        """A row for each length."""
        title = f"Planning rounds: {self.rounds} each, solver {1000 * self.solver_s:g} ms, seed {self.seed}"
        yield figures_table(title, "queued", _COLUMNS, ((f"{each.queued:,}", each) for each in self.results))
