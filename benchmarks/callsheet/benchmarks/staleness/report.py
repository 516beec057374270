"""What the benchmark of staleness policies found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A policy that paces trains on so much of every quantile of length.
LEAST_TRAINED = 0.99


@dataclass(frozen=True, slots=True)
class LengthQuantile:
    """Trajectories up to a length: how many are over, and what part of them was trained on."""

    up_to_min: float
    trajectories: int
    trained: float


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy.

    Attributes:
        name: Which.
        bound: The staleness that nothing trained on may pass; None if it has no such bound.
        paces: Whether it drops nothing and so must train on all.
        versions: Published ones.
        counts: Trajectories by what became of them.
        staleness: Those that were trained on by their staleness.
        quantiles: By length.
        trainer_waits: The part of time in which the trainer waited for a batch.
    """

    name: str
    bound: int | None
    paces: bool
    versions: int
    counts: Mapping[str, int]
    staleness: Mapping[int, int]
    quantiles: tuple[LengthQuantile, ...]
    trainer_waits: float

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        found = []
        worst = max(self.staleness, default=0)
        if not self.staleness:
            found.append(f"{self.name}: nothing was trained on")
        if self.bound is not None and worst > self.bound:
            found.append(f"{self.name}: a trajectory was {worst} versions old when it was trained on, not {self.bound}")
        if self.paces:
            found += [
                f"{self.name}: of those up to {each.up_to_min:g} min only {each.trained:.1%} were trained on"
                for each in self.quantiles
                if each.trained < LEAST_TRAINED
            ]
        return found


@dataclass(frozen=True, slots=True)
class StalenessReport:
    """All policies on the same lengths."""

    runs: tuple[PolicyRun, ...]
    workload: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        return [each for run in self.runs for each in run.findings]

    def as_json(self) -> dict[str, Any]:
        """The report as one object."""
        runs = {
            each.name: {
                "versions": each.versions,
                "counts": dict(each.counts),
                "staleness": {str(key): count for key, count in sorted(each.staleness.items())},
                "trained_by_length": [
                    {"up_to_min": round(q.up_to_min, 2), "trajectories": q.trajectories, "trained": round(q.trained, 4)}
                    for q in each.quantiles
                ],
                "trainer_waits": round(each.trainer_waits, 3),
            }
            for each in self.runs
        }
        return {
            "holds": not self.findings,
            "findings": self.findings,
            "workload": dict(self.workload),
            "policies": runs,
            "machine": dict(self.machine),
        }
