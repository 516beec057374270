"""What the rewards benchmark found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import ratio, rounded
from callsheet.benchmarks.rewards.settings import RewardsBenchSettings

OURS = "callsheet"
STATIC = "static, all resident"
SWAPPERS = ("first come", "resident first")
MOST_MEAN = 0.95
MOST_P99 = 0.9
MOST_MEMORY = 1.1
MOST_OVERHEAD = 0.32
RESTORE_SHARE = (0.5, 0.6)


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
        overhead_share: (ACT - queue - execution) / execution, of the means; the wait in the manager's line is queue,
            but for the restore.
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
class RewardsReport:
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
    def bars(self) -> dict[str, tuple[float, float]]:
        """What must not be above what."""
        ours = self.policies[OURS]
        swappers = [self.policies[name] for name in SWAPPERS]
        swapping = [ours, *swappers]
        bars = {
            "mean of the better swapper's": (ratio(ours.mean_s, min(each.mean_s for each in swappers)), MOST_MEAN),
            "p99 of the better swapper's": (ratio(ours.p99_s, min(each.p99_s for each in swappers)), MOST_P99),
            "memory of the budget": (max(each.memory_mib / each.budget_mib for each in swapping), MOST_MEMORY),
            "difference of a score": (
                max(each.worst_difference for each in self.policies.values()),
                self.settings.tolerance,
            ),
        }
        if self.overhead is not None:
            bars["overhead of an execution"] = (self.overhead.overhead_share, MOST_OVERHEAD)
            low, high = RESTORE_SHARE
            away = max(low - self.overhead.restore_share, self.overhead.restore_share - high, 0.0)
            bars[f"restore / execution beyond {low} to {high}"] = (away, 0.0)
        return bars

    @property
    def met(self) -> bool:
        """Whether every bar is."""
        return all(found <= most for found, most in self.bars.values())

    def as_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "base_mib": rounded({"": self.base_mib})[""],
            "between_s": rounded({"": self.between_s})[""],
            "policies": {name: rounded(asdict(each)) for name, each in self.policies.items()},
            "overhead": None if self.overhead is None else rounded(asdict(self.overhead)),
            "bars": {name: rounded({"found": found, "most": most}) for name, (found, most) in self.bars.items()},
            "met": self.met,
        }
