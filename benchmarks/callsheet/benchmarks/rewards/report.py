"""What the rewards benchmark found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import ratio, rounded
from callsheet.benchmarks.rewards.settings import RewardsBenchSettings
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from rich.console import RenderableType

OURS = "callsheet"
STATIC = "static, all resident"
SWAPPERS = ("first come", "resident first")
MOST_MEAN = 0.95
MOST_P99 = 0.9
RESTORE_SHARE = (0.5, 0.6)
_COLUMNS: tuple[Column, ...] = (
    ("budget MiB", "budget_mib", ".0f"),
    ("mean s", "mean_s", ".3f"),
    ("p50", "p50_s", ".3f"),
    ("p99", "p99_s", ".3f"),
    ("longest", "longest_s", ".3f"),
    ("restores", "restores", "d"),
    ("hit rate", "hit_rate", ".2f"),
    ("batch", "per_batch", ".1f"),
    ("memory MiB", "memory_mib", ".0f"),
)


@dataclass(frozen=True, slots=True)
class SwappingResult:
    """One policy's run.

    Attributes:
        budget_mib: Memory for weights.
        mean_s: Mean time from submit to outcome.
        p50_s: Median of the same.
        p99_s: The same.
        longest_s: The longest.
        restores: Models brought in.
        hit_rate: Share of requests whose model was there when they came to the manager.
        per_batch: Requests of a batch, on average.
        execution_s: Mean execution.
        restore_s: Mean seconds of a restore.
        wall_s: From the first submit to the last outcome.
        memory_mib: The most memory of the workers, beyond what they take once all models are open without weights.
        worst_difference: Of a score from that of its model alone.
    """

    budget_mib: float
    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    restores: int
    hit_rate: float
    per_batch: float
    execution_s: float
    restore_s: float
    wall_s: float
    memory_mib: float
    worst_difference: float


@dataclass(frozen=True, slots=True)
class OverheadResult:
    """The run with few requests at once, whose inputs are so long that a restore is about half of an execution.

    Attributes:
        scorings: How many.
        tokens: Of each input.
        restore_share: Mean restore / mean execution.
        overhead_share: (overhead + waits for restores) / execution, of the means. The rest of the wait in the
            manager's line is waiting, as in outcomes.
        execution_s: Mean execution.
        hit_rate: As above.
    """

    scorings: int
    tokens: int
    restore_share: float
    overhead_share: float
    execution_s: float
    hit_rate: float


@dataclass(frozen=True, slots=True)
class RewardsReport(BenchmarkReport):
    """All of it.

    Attributes:
        settings: What was run.
        machine: On what.
        base_mib: Memory of a worker with all models open, without their weights.
        between_s: Mean time between two requests.
        policies: By name.
        overhead: None where it was left out.
    """

    settings: RewardsBenchSettings
    machine: Mapping[str, Any]
    base_mib: float
    between_s: float
    policies: Mapping[str, SwappingResult]
    overhead: OverheadResult | None

    @property
    def bars(self) -> Sequence[Bar]:
        """Callsheet against the better swapper, and what holds for all."""
        ours = self.policies[OURS]
        swappers = [self.policies[name] for name in SWAPPERS]
        memory = max(each.memory_mib / each.budget_mib for each in (ours, *swappers))
        away = max(each.worst_difference for each in self.policies.values())
        mean_s, p99_s = min(each.mean_s for each in swappers), min(each.p99_s for each in swappers)
        bars = [
            Bar("mean by the better swapper's", ratio(ours.mean_s, mean_s), at_most=MOST_MEAN),
            Bar("p99 by the better swapper's", ratio(ours.p99_s, p99_s), at_most=MOST_P99),
            Bar("memory by the budget", memory, at_most=1.1),
            Bar("difference of a score", away, at_most=self.settings.tolerance),
        ]
        if self.overhead is not None:
            bars.append(Bar("overhead by an execution", self.overhead.overhead_share, at_most=0.32))
            bars.append(Bar("restore by an execution", self.overhead.restore_share, *RESTORE_SHARE))
        return bars

    def as_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "base_mib": rounded({"": self.base_mib})[""],
            "between_s": rounded({"": self.between_s})[""],
            "policies": {name: rounded(asdict(each)) for name, each in self.policies.items()},
            "overhead": None if self.overhead is None else rounded(asdict(self.overhead)),
            "bars": [rounded(asdict(bar)) for bar in self.bars],
            "met": all(bar.met for bar in self.bars),
        }

    def tables(self) -> Iterator[RenderableType]:
        """A row for each policy, and the light run."""
        settings = self.settings
        title = f"{settings.scorings:,} scorings by {settings.models} models of about {settings.model_mib} MiB"
        yield figures_table(title, "policy", _COLUMNS, self.policies.items())
        if self.overhead is not None:
            one = self.overhead
            yield (
                f"overhead: {one.scorings} scorings of {one.tokens} tokens, execution {one.execution_s:.3f} s, "
                f"restore / execution {one.restore_share:.2f}, hit rate {one.hit_rate:.2f}"
            )
