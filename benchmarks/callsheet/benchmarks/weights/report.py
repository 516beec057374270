"""What the benchmark of policy versions found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callsheet.benchmarks.weights.checks import CheckedTokens


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One mode of updates under load.

    Attributes:
        mode: Which.
        published: Versions that were published.
        smallest_change: The smallest difference of a log-probability between the canaries of two versions in a row.
        checked: What was found.
        failures: Actions that failed.
        wall_s: Seconds from the first submit to the last outcome.
        exposed_s: By engine, seconds in which it could begin nothing because of its newest update.
        exposed_total_s: By engine, the same of all updates in this mode, by the scheduler's clock.
    """

    mode: str
    published: int
    smallest_change: float
    checked: CheckedTokens
    failures: tuple[str, ...]
    wall_s: float
    exposed_s: tuple[float, ...]
    exposed_total_s: tuple[float, ...]

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        return [f"{self.mode}: {each}" for each in (*self.checked.findings, *self.failures)]


@dataclass(frozen=True, slots=True)
class FaultResult:
    """An update that went wrong under load.

    Attributes:
        fault: What went wrong.
        quarantined: Why the engine was quarantined, as its rollout told; empty if that was not seen.
        recovered: Whether all engines had proved the weights in the end.
        checked: What was found of all that was generated meanwhile.
        failures: Actions that failed.
    """

    fault: str
    quarantined: str
    recovered: bool
    checked: CheckedTokens
    failures: tuple[str, ...]

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        found = [f"{self.fault}: {each}" for each in (*self.checked.findings, *self.failures)]
        if not self.recovered:
            found.append(f"{self.fault}: not all engines proved the weights in the end")
        return found


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """All modes and faults."""

    modes: tuple[ModeResult, ...]
    faults: tuple[FaultResult, ...]
    engine: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """What does not hold, as sentences."""
        of_modes = [each for result in self.modes for each in result.findings]
        return of_modes + [each for result in self.faults for each in result.findings]

    def as_json(self) -> dict[str, Any]:
        """The report as one object."""
        modes = {
            each.mode: {
                "published": each.published,
                "smallest_change_of_a_canary": round(each.smallest_change, 4),
                **_figures(each.checked),
                "failed": len(each.failures),
                "wall_s": round(each.wall_s, 2),
                "exposed_by_newest_update_s": [round(exposed, 3) for exposed in each.exposed_s],
                "exposed_in_all_s": [round(exposed, 3) for exposed in each.exposed_total_s],
            }
            for each in self.modes
        }
        faults = {
            each.fault: {
                "quarantined": each.quarantined,
                "recovered": each.recovered,
                **_figures(each.checked),
                "failed": len(each.failures),
            }
            for each in self.faults
        }
        return {
            "holds": not self.findings,
            "findings": self.findings,
            "engine": self.engine,
            "modes": modes,
            "faults": faults,
            "machine": dict(self.machine),
        }


def _figures(checked: CheckedTokens) -> dict[str, Any]:
    return {
        "actions": checked.actions,
        "tokens": checked.tokens,
        "recomputed_tokens": checked.recomputed,
        "largest_log_prob_error": float(f"{checked.largest_error:.3g}"),
        "ended_early": checked.aborted,
        "of_several_versions": checked.crossing,
        "begun_before_a_switch": checked.marked,
        "cache_hits": checked.hits,
        "tokens_by_version": {str(version): count for version, count in sorted(checked.versions.items())},
    }
