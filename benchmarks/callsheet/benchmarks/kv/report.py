"""What the benchmark of KV admission found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from callsheet.benchmarks.kv.load import LoadTally
from callsheet.benchmarks.kv.settings import ALL_AT_ONCE, THROUGH_CALLSHEET
from callsheet.benchmarks.measuring.statistics import percentile, ratio, rounded, significant

LEAST_RATIO: Final = 0.98
"""Of plain's throughput, while KV is not short by far."""
SHORT_DEMAND: Final = 2.0
LEAST_RATIO_SHORT: Final = 1.0
"""The same from `SHORT_DEMAND` on."""
MOST_RECOMPUTED_SHORT: Final = 0.5
"""Of plain's recomputed tokens for each turn, from `SHORT_DEMAND` on."""


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """How one policy did at one demand, all its runs together.

    Attributes:
        turns: Generations that ended.
        turns_per_min: The same a minute.
        decoded_per_min: New tokens a minute.
        trajectories_per_min: Trajectories that ended, a minute.
        prompt_per_turn: Tokens of a prompt, on average.
        recomputed_per_turn: Tokens of a generation that were computed anew, on average.
        act_mean_s: Seconds from asking for a generation to its end, on average.
        act_p95_s: The 95th percentile of the same.
        act_longest_s: The longest of these.
        turns_per_cpu_s: Generations that ended for each CPU second of the engine; 0 where that is not known. What
            others have running on the machine changes it less than anything by the minute.
    """

    turns: int
    turns_per_min: float
    decoded_per_min: float
    trajectories_per_min: float
    prompt_per_turn: float
    recomputed_per_turn: float
    act_mean_s: float
    act_p95_s: float
    act_longest_s: float
    turns_per_cpu_s: float

    def as_json(self) -> dict[str, Any]:
        """The figures by their names."""
        return rounded({name: getattr(self, name) for name in self.__slots__}, 4)


def figures_of(tally: LoadTally) -> PolicyFigures:
    """Sums up what was measured."""
    turns, minutes = tally.turns, max(tally.seconds, 1e-9) / 60.0
    count = max(len(turns), 1)
    acts = [turn.act_s for turn in turns] or [0.0]
    return PolicyFigures(
        turns=len(turns),
        turns_per_min=len(turns) / minutes,
        decoded_per_min=sum(turn.new_tokens for turn in turns) / minutes,
        trajectories_per_min=sum(turn.last for turn in turns) / minutes,
        prompt_per_turn=sum(turn.prompt_tokens for turn in turns) / count,
        recomputed_per_turn=sum(turn.recomputed_tokens for turn in turns) / count,
        act_mean_s=sum(acts) / count,
        act_p95_s=percentile(acts, 95.0),
        act_longest_s=max(acts),
        turns_per_cpu_s=len(turns) / tally.engine_cpu_s if tally.engine_cpu_s else 0.0,
    )


def bound_name(bound: int) -> str:
    """What a bound of plain clients is called."""
    if bound == THROUGH_CALLSHEET:
        return "through callsheet"
    return "all at once" if bound == ALL_AT_ONCE else f"{bound} at once"


@dataclass(frozen=True, slots=True)
class DemandFigures:
    """Both policies at one demand.

    Attributes:
        demand: Contexts of live trajectories by the KV there is.
        live: How many live.
        callsheet: With KV admission.
        plain: Without, by the bound of requests at once.
        failures: Why trajectories ended early.
    """

    demand: float
    live: int
    callsheet: PolicyFigures
    plain: Mapping[int, PolicyFigures]
    failures: Sequence[str] = ()

    @property
    def best_bound(self) -> int:
        """The bound with which plain clients did most."""
        return max(self.plain, key=lambda bound: self.plain[bound].turns_per_min)

    @property
    def best_plain(self) -> PolicyFigures:
        """Plain clients at their best."""
        return self.plain[self.best_bound]

    @property
    def throughput_ratio(self) -> float:
        """Callsheet's turns a minute by those of plain clients at their best. Each turn has as many new tokens."""
        return ratio(self.callsheet.turns_per_min, self.best_plain.turns_per_min)

    @property
    def cpu_ratio(self) -> float | None:
        """The same for each CPU second of the engine, by the bound with most of it; None where that is not known."""
        plain = max(each.turns_per_cpu_s for each in self.plain.values())
        return self.callsheet.turns_per_cpu_s / plain if plain else None

    @property
    def findings(self) -> list[str]:
        """Bars that are missed, as sentences."""
        found = [f"demand {self.demand:g}: {each}" for each in self.failures]
        short = self.demand >= SHORT_DEMAND
        least = LEAST_RATIO_SHORT if short else LEAST_RATIO
        if not self.throughput_ratio >= least:
            found.append(f"demand {self.demand:g}: {self.throughput_ratio:.2f} of plain's throughput, below {least:g}")
        most = MOST_RECOMPUTED_SHORT * self.best_plain.recomputed_per_turn
        if short and self.callsheet.recomputed_per_turn > most:
            seen = self.callsheet.recomputed_per_turn
            found.append(f"demand {self.demand:g}: {seen:.0f} recomputed tokens a turn, above {most:.0f}")
        return found

    def as_json(self) -> dict[str, Any]:
        """The figures as one object."""
        return {
            "demand": self.demand,
            "live_trajectories": self.live,
            "callsheet": self.callsheet.as_json(),
            "plain": {bound_name(bound): each.as_json() for bound, each in self.plain.items()},
            "best_plain": bound_name(self.best_bound),
            "throughput_ratio": significant(self.throughput_ratio, 3),
            "ratio_by_engine_cpu": significant(self.cpu_ratio, 3),
        }


@dataclass(frozen=True, slots=True)
class KvBenchReport:
    """All demands on one engine.

    Attributes:
        engine: Its driver's name.
        kv_tokens: What its KV cache holds.
        prefill_tokens: Tokens of a prompt that was timed on the idle engine.
        prefill_s: What it took.
        demands: What was measured.
        workload: The settings of the load.
        machine: Where it ran.
    """

    engine: str
    kv_tokens: int
    prefill_tokens: int
    prefill_s: float
    demands: tuple[DemandFigures, ...]
    workload: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """Bars that are missed, as sentences."""
        return [each for demand in self.demands for each in demand.findings]

    def as_json(self) -> dict[str, Any]:
        """The report as one object."""
        return {
            "holds": not self.findings,
            "findings": self.findings,
            "engine": self.engine,
            "kv_tokens": self.kv_tokens,
            "prefill": {"tokens": self.prefill_tokens, "s": round(self.prefill_s, 3)},
            "demands": [each.as_json() for each in self.demands],
            "workload": dict(self.workload),
            "machine": dict(self.machine),
        }
