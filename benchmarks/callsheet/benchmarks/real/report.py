"""What the real benchmark found, beside what the simulator predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.simulator.comparison.figures import Figures, significant
from callsheet.benchmarks.simulator.comparison.load import Load

_SPAN = "step_s"
NOTES = {
    "callsheet_asleep": "its commands sleep for as long as the others' take alone",
    "ray": "its commands sleep likewise, and nothing is reset, as Ray has no sandboxes: one action less a trajectory",
}
"""What is to be known of a policy's figures."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy's figures, measured and simulated."""

    measured: Figures
    simulated: Figures


@dataclass(frozen=True, slots=True)
class RealReport:
    """One run of `callsheet bench real`.

    Attributes:
        start_up_cpu_s: CPU seconds of the smallest command, measured first; no command of the workload takes less.
        overhead_s: What the service adds to the smallest command on an idle machine; simulated callsheet has it too.
    """

    settings: RealSettings
    load: Load
    cores: int
    policies: Mapping[str, Pair]
    start_up_cpu_s: float
    overhead_s: float
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
                    "note": NOTES.get(name),
                }
                for name, pair in self.policies.items()
            },
            "start_up_cpu_s": significant(self.start_up_cpu_s),
            "overhead_s": significant(self.overhead_s),
            "machine": dict(self.machine),
            "wall_s": significant(self.wall_s),
        }
