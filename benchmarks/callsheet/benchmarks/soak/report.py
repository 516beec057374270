"""What a soak found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.soak.bounds import Finding, SoakLimits, SoakSample
from callsheet.benchmarks.soak.load import SoakCounts


@dataclass(frozen=True, slots=True)
class DatabaseSoak:
    """One database's part."""

    database: str
    samples: tuple[SoakSample, ...]
    limits: SoakLimits
    counts: SoakCounts
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class SoakReport:
    """All parts, and the machine."""

    soaks: tuple[DatabaseSoak, ...]
    machine: dict[str, Any]

    @property
    def bounded(self) -> bool:
        """Whether everything stayed within its bound."""
        return all(finding.met for soak in self.soaks for finding in soak.findings)

    def as_json(self) -> dict[str, Any]:
        """As one JSON object; sizes in bytes."""
        return {
            "bounded": self.bounded,
            "machine": self.machine,
            "soaks": [asdict(soak) for soak in self.soaks],
        }
