"""How large the dashboard's benchmark is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class DashboardBenchSettings:
    """Sizes of the journal, of the measurements, and of the load."""

    live: Annotated[int, Setting("Open trajectories in the journal.", least=100)] = 10_000
    ended: Annotated[int, Setting("Closed trajectories in the journal.", least=100)] = 100_000
    looks: Annotated[int, Setting("Requests of each view, of different objects where a view has one.", least=2)] = 100
    clients: Annotated[int, Setting("Readers, each of all views in turn.", least=1)] = 20
    rate: Annotated[int, Setting("No-ops a second meanwhile.", least=1)] = 800
    seconds: Annotated[float, Setting("Seconds of each measurement of CPU time.", least=1.0)] = 8.0
    repetitions: Annotated[int, Setting("Measurements without readers and with them; the median counts.", least=1)] = 7
    seed: Annotated[int, Setting("The journal is drawn from it.", least=0)] = 0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is too small; the message names it.
        """
        check_least(self)
