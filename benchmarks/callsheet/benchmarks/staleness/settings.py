"""How much of a run is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class StalenessBenchSettings:
    """A trainer and its rollouts in virtual time; times in minutes unless said otherwise."""

    hours: Annotated[float, Setting("Virtual hours of each run.", least=0.5)] = 24.0
    slots: Annotated[int, Setting("Trajectories that live at once, at most.", least=1)] = 128
    batch: Annotated[int, Setting("Trajectories in a batch.", least=1)] = 32
    shortest: Annotated[float, Setting("The shortest trajectory.", least=0.01)] = 1.0
    longest: Annotated[float, Setting("The longest one; lengths are log-uniform.", least=0.02)] = 60.0
    train: Annotated[float, Setting("What an optimiser step takes.", least=0.0)] = 2.0
    within: Annotated[int, Setting("The bound of every policy, in versions.", least=1)] = 4
    seed: Annotated[int, Setting("Draws the lengths; all policies have the same ones.")] = 7

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_least(self)
