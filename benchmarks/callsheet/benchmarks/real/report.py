"""What the real benchmark found, beside what the simulator predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.real.ray_tasks import RAY_POLICIES
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs
from callsheet.benchmarks.runner import BenchmarkReport, Column, cell, new_table
from callsheet.benchmarks.simulator.best_case import Load
from callsheet.benchmarks.simulator.comparison.figures import Figures
from rich.console import RenderableType

_SPAN = "step_s"
_COLUMNS: tuple[Column, ...] = (
    ("ACT with start", "act_with_start_mean_s", ".3f"),
    ("ACT mean", "act_mean_s", ".3f"),
    ("p99", "act_p99_s", ".2f"),
    ("longest wait", "wait_max_s", ".1f"),
    ("start wait", "start_wait_mean_s", ".1f"),
    ("step", "step_s", ".1f"),
    ("held", "held", ".0%"),
    ("used", "used", ".0%"),
)
NOTES = {
    "callsheet_asleep": "its commands sleep for as long as the others' take alone",
    "ray_tasks": "a task of one logical core per command, workers warm; no sandbox and no reset: one action less",
    "ray_shared": "tasks of a tenth of a logical core, so that all run at once and the system shares the cores",
    "ray": "its commands sleep likewise, in tasks of one logical core",
}
"""What is to be known of a policy's figures."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy's figures, measured and simulated, and CPU seconds that the service used for a command; None for Ray."""

    measured: Figures
    simulated: Figures
    service_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class RealReport(BenchmarkReport):
    """One run of `callsheet bench real`.

    Attributes:
        costs: Of this machine; what is simulated has them, too.
    """

    settings: RealSettings
    load: Load
    cores: int
    policies: Mapping[str, Pair]
    costs: Costs
    machine: Mapping[str, Any]
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object; a policy's own figures are the measured ones."""
        return {
            "workload": "real",
            "mode": "oneshot",
            "rho": significant(self.load.rho),
            "cores": self.cores,
            "trajectories": self.settings.trajectories,
            "seed": self.settings.seed,
            "policies": {
                name: {
                    **pair.measured.as_json(_SPAN),
                    "measured": pair.measured.as_json(_SPAN),
                    "simulated": pair.simulated.as_json(_SPAN),
                    "service_cpu_s": significant(pair.service_cpu_s),
                    "note": NOTES.get(name),
                }
                for name, pair in self.policies.items()
            },
            **rounded(asdict(self.costs)),
            "machine": dict(self.machine),
            "wall_s": significant(self.wall_s),
        }

    def tables(self) -> Iterator[RenderableType]:
        """Every figure measured, and the simulator's prediction after it."""
        settings, costs = self.settings, self.costs
        title = (
            f"{settings.trajectories} trajectories on {self.cores} cores, rho {self.load.rho:.2f}, "
            f"seed {settings.seed}: measured (simulated), in s"
        )
        table = new_table(title, "policy", *(f">{heading}" for heading, _, _ in _COLUMNS), ">service's CPU a command")
        for name, pair in self.policies.items():
            cells = [
                f"{cell(getattr(pair.measured, figure), form)} ({cell(getattr(pair.simulated, figure), form)})"
                for _, figure, form in _COLUMNS
            ]
            service = "" if pair.service_cpu_s is None else f"{pair.service_cpu_s * 1000:.0f} ms"
            table.add_row(name, *cells, service, style="bold" if name == "callsheet" else None)
        yield table
        yield from (f"{name}: {note}." for name, note in NOTES.items() if name in self.policies)
        if missing := [each.name for each in RAY_POLICIES if each.name not in self.policies]:
            yield f"{', '.join(missing)}: left out, as Ray is not installed: pip install '.[ray]' in a checkout."
        yield (
            f"The smallest command takes {costs.start_up_cpu_s * 1000:.0f} ms of CPU, and through the service "
            f"{costs.overhead_s * 1000:.0f} ms more. A sandbox takes the service {costs.reset_cpu_s * 1000:.0f} ms of "
            f"CPU. {self.wall_s:.0f} s in all."
        )
