"""What the real benchmark found, beside what the simulator predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs
from callsheet.benchmarks.simulator.comparison.figures import Figures
from callsheet.benchmarks.simulator.comparison.load import Load

_SPAN = "step_s"
NOTES = {
    "callsheet_asleep": "its commands sleep for as long as the others' take alone",
    "ray": "its commands sleep likewise, and nothing is reset, as Ray has no sandboxes: one action less a trajectory",
}
"""What is to be known of a policy's figures."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy's figures, measured and simulated, and CPU seconds that the service used for a command; None for Ray."""

    measured: Figures
    simulated: Figures
    service_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class RealReport:
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
