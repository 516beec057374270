"""A comparison of KV policies as data, and the bars that Callsheet is held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.simulator.kv.measured import KvRun
from callsheet.benchmarks.simulator.kv.settings import KvSettings

# Of plain routing where KV suffices; of any rival where it is a little short: no worse, but for what seeds differ by.
NO_WORSE = 0.98
SHORT = 2.0
# From `SHORT` on: throughput by that of each rival.
BARS_WHEN_SHORT = {"plain": 1.8, "cache_aware": 2.0, "thunder_agent": 1.2}


@dataclass(frozen=True, slots=True)
class KvBar:
    """A ratio of throughputs that is asked for, and what was found.

    Attributes:
        possible: The most that any policy could reach: `KvPoint.bound_turns_per_hour` by the rival's figure.
    """

    shape: str
    demand: float
    rival: str
    least: float
    found: float
    possible: float

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.found >= self.least


@dataclass(frozen=True, slots=True)
class KvPoint:
    """All policies at one demand; means over the seeds, ratios by seed.

    Attributes:
        live: Trajectories at once.
        bound_turns_per_hour: What no policy exceeds for long; see `comparison.bound_of`.
        best: Each family's best setting here.
        runs: What it did.
        ratios: Callsheet's turns an hour by those of each rival's best setting.
        ratios_of_trajectories: The same of trajectories an hour. Who leaves long trajectories waiting has more turns.
        ratios_to_usual: Callsheet's turns an hour by those of each rival as it comes.
    """

    shape: str
    demand: float
    prefill_scale: float
    live: int
    bound_turns_per_hour: float
    best: Mapping[str, str]
    runs: Mapping[str, KvRun]
    ratios: Mapping[str, tuple[float, ...]]
    ratios_of_trajectories: Mapping[str, tuple[float, ...]]
    ratios_to_usual: Mapping[str, tuple[float, ...]]

    def bars(self) -> Iterator[KvBar]:
        """What it is held to."""
        if self.demand <= 1.0:
            least = {"plain": NO_WORSE}
        elif self.demand < SHORT:
            least = dict.fromkeys(self.ratios, NO_WORSE)
        else:
            least = BARS_WHEN_SHORT
        for rival, ratio in least.items():
            possible = self.bound_turns_per_hour / max(self.runs[rival].turns_per_hour, 1e-9)
            yield KvBar(self.shape, self.demand, rival, ratio, fmean(self.ratios[rival]), possible)

    def as_json(self) -> dict[str, Any]:
        """The point as one JSON object."""
        return {
            "shape": self.shape,
            "demand": self.demand,
            "prefill_scale": self.prefill_scale,
            "live": self.live,
            "bound_turns_per_hour": significant(self.bound_turns_per_hour),
            "policies": {
                name: {"setting": self.best[name], **rounded(run._asdict())} for name, run in self.runs.items()
            },
            "ratios": _listed(self.ratios),
            "ratios_of_trajectories": _listed(self.ratios_of_trajectories),
            "ratios_to_usual": _listed(self.ratios_to_usual),
        }


@dataclass(frozen=True, slots=True)
class KvReport:
    """A whole comparison."""

    settings: KvSettings
    points: tuple[KvPoint, ...]

    @property
    def bars(self) -> list[KvBar]:
        """All that Callsheet is held to."""
        return [bar for point in self.points for bar in point.bars()]

    @property
    def missed(self) -> list[str]:
        """What is not reached, as sentences."""
        return [
            f"{bar.shape} at {bar.demand:g}: {bar.found:.2f} of {bar.rival}, not {bar.least:g} "
            f"(at most {bar.possible:.2f} is possible)"
            for bar in self.bars
            if not bar.met
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "workload": "kv",
            "seeds": list(self.settings.seeds),
            "engines": self.settings.engines,
            "horizon_s": self.settings.horizon_s,
            "points": [point.as_json() for point in self.points],
            "bars_met": sum(bar.met for bar in self.bars),
            "bars_missed": self.missed,
        }


def _listed(ratios: Mapping[str, tuple[float, ...]]) -> dict[str, dict[str, Any]]:
    return {
        rival: {"mean": significant(fmean(by_seed)), "by_seed": [significant(each) for each in by_seed]}
        for rival, by_seed in ratios.items()
    }
