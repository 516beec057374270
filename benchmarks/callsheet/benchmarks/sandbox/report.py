"""What the sandbox benchmark found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import percentile, rounded
from callsheet.benchmarks.sandbox.measuring import SandboxMeasurements
from callsheet.benchmarks.sandbox.service import LONG_ACTION_S, ServiceSamples

OVERHEAD_TARGET = 0.03

_VERBS = ("create", "reset", "first_exec", "exec", "step", "destroy", "score", "score_large", "score_many")


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """One number of live sandboxes."""

    sandboxes: int
    measured: SandboxMeasurements
    service: ServiceSamples

    @property
    def overhead_share(self) -> float:
        """The part of a one-second action, from submit to outcome, that is not its command; p50."""
        return _share_beyond_command(self.service.long)

    @property
    def plain_overhead_share(self) -> float:
        """The same of a plain process: what this machine, as busy as it was, would have taken anyway."""
        return _share_beyond_command(self.service.plain)

    @property
    def met(self) -> bool:
        """Whether that is as little as it should be."""
        return self.overhead_share < OVERHEAD_TARGET

    def as_json(self) -> dict[str, Any]:
        """The figures as one object; null where something cannot be measured here."""
        samples, idle = self.measured.samples, self.measured.idle
        figures = {
            "sandboxes": self.sandboxes,
            **{
                f"{verb}_p{percent}_ms": _ms(getattr(samples, verb), percent) for verb in _VERBS for percent in (50, 99)
            },
            "bare_create_p50_ms": _ms(samples.bare_create, 50),
            "bare_exec_p50_ms": _ms(samples.bare_exec, 50),
            "switch_p50_us": 1e6 * percentile(samples.switch, 50),
            "switch_p99_us": 1e6 * percentile(samples.switch, 99),
            "freeze_p50_us": 1e6 * percentile(samples.freeze, 50),
            "idle_mb": _mb(idle.mib),
            "idle_processes_mb": _mb(idle.processes_mib),
            "idle_group_mb": _mb(idle.group_mib),
            "creates_per_s": self.sandboxes / self.measured.fill_s,
            "service_step_p50_ms": _ms(self.service.step, 50),
            "service_step_p99_ms": _ms(self.service.step, 99),
            "giving_way_p50_ms": _ms(self.service.giving_way, 50),
            "giving_way_p99_ms": _ms(self.service.giving_way, 99),
            "overhead_share": self.overhead_share,
            "plain_overhead_share": self.plain_overhead_share,
        }
        return rounded(figures, digits=4)


@dataclass(frozen=True, slots=True)
class SandboxBenchReport:
    """Results by number of live sandboxes.

    Attributes:
        isolation: What kept them apart.
        capabilities: What the back end enforces here, and how.
        machine: What it ran on.
    """

    isolation: str
    capabilities: Mapping[str, str]
    machine: Mapping[str, Any]
    samples: int
    results: Sequence[SandboxResult]

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each number of sandboxes."""
        shared = {
            "isolation": self.isolation,
            "backend": dict(self.capabilities),
            "samples": self.samples,
            "machine": dict(self.machine),
        }
        return [{**each.as_json(), **shared} for each in self.results]


def _share_beyond_command(samples: Sequence[float]) -> float:
    took_s = percentile(samples, 50)
    return (took_s - LONG_ACTION_S) / took_s


def _ms(seconds: Sequence[float], percent: float) -> float | None:
    return 1e3 * percentile(seconds, percent) if seconds else None


def _mb(mib: float | None) -> float | None:
    return None if mib is None else mib * (1 << 20) / 1e6
