"""What the benchmark of groups found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One way to run groups: seconds from batch to batch, with faults and without, and what happened to rollouts."""

    name: str
    without_faults_s: tuple[float, ...]
    with_faults_s: tuple[float, ...]
    hung: int
    crashed: int

    @property
    def ratio(self) -> float:
        """The mean time per batch with faults, in those without."""
        means = [sum(each) / len(each) for each in (self.with_faults_s, self.without_faults_s)]
        return means[0] / means[1]


@dataclass(frozen=True, slots=True)
class KilledTrainers:
    """Trainers that were killed between taking and acknowledging.

    Attributes:
        finished: Trajectories that rollouts finished.
        kills: Trainers that were killed while they held a batch.
        acknowledged: How often each trajectory was acknowledged.
    """

    finished: int
    kills: int
    acknowledged: Mapping[str, int]

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        twice = [each for each, times in self.acknowledged.items() if times > 1]
        found = [f"{len(twice)} trajectories were acknowledged twice: {twice[:3]}"] if twice else []
        if len(self.acknowledged) != self.finished:
            found.append(f"{self.finished} trajectories finished and {len(self.acknowledged)} were acknowledged")
        if not self.kills:
            found.append("no trainer was killed while it held a batch")
        return found


@dataclass(frozen=True, slots=True)
class GroupsReport:
    """All of it; `quorum` has the bar."""

    quorum: BatchTimes
    without_quorum: BatchTimes
    killed: KilledTrainers
    workload: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        found = list(self.killed.findings)
        if self.quorum.ratio > MOST_RATIO:
            found.append(f"with faults a batch takes {self.quorum.ratio:.2f} of the time without, beyond {MOST_RATIO}")
        return found

    def as_json(self) -> dict[str, Any]:
        """The report as one object."""
        return {
            "holds": not self.findings,
            "findings": self.findings,
            "workload": dict(self.workload),
            "ratio": {each.name: round(each.ratio, 3) for each in (self.quorum, self.without_quorum)},
            "batches": {
                each.name: {
                    "without_faults_s": [round(seconds, 3) for seconds in each.without_faults_s],
                    "with_faults_s": [round(seconds, 3) for seconds in each.with_faults_s],
                    "hung": each.hung,
                    "crashed": each.crashed,
                }
                for each in (self.quorum, self.without_quorum)
            },
            "killed_trainers": {
                "finished": self.killed.finished,
                "kills": self.killed.kills,
                "acknowledged_once": sum(times == 1 for times in self.killed.acknowledged.values()),
            },
            "machine": dict(self.machine),
        }
