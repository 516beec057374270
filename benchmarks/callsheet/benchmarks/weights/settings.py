"""How much load there is while weights change, and how often they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.common import comma_separated
from callsheet.options.declaration import Setting, check_least

MODES = ("drain", "abort", "keep")
FAULTS = ("half", "ignored", "mislabelled", "old", "killed")
"""An update that breaks off, one that changes the label alone or the weights alone, an engine that is back with its old
weights, and one that is killed in mid-update."""


@dataclass(frozen=True, slots=True)
class WeightsBenchSettings:
    """Sizes of the load; times in seconds."""

    trajectories: Annotated[int, Setting("Trajectories that run at once.", least=1)] = 64
    turns: Annotated[int, Setting("Generations of each.", least=1)] = 8
    tokens: Annotated[int, Setting("New tokens of each generation.", least=2)] = 96
    publishes: Annotated[int, Setting("The most publishes in each mode.", least=1)] = 6
    interval_s: Annotated[float, Setting("Seconds between two publishes.", least=0)] = 2.5
    modes: Annotated[
        tuple[str, ...],
        Setting(
            "Modes of updates, one after another, with commas.",
            metavar="MODE,...",
            default=",".join(MODES),
            text=str,
            parse=comma_separated,
        ),
    ] = MODES
    faults: Annotated[
        tuple[str, ...],
        Setting(
            "Updates that go wrong, one after another, with commas; none leaves them out.",
            metavar="FAULT,...",
            default=",".join(FAULTS),
            text=str,
            parse=comma_separated,
        ),
    ] = FAULTS
    seed: Annotated[int, Setting("Chance comes from it.", least=0)] = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: One is wrong; the message names it.
        """
        check_least(self)
        unknown = sorted(set(self.modes) - set(MODES))
        if unknown or not self.modes:
            raise ValueError(f"modes: {', '.join(unknown) or 'none'} is none of {', '.join(MODES)}")
        if unknown_faults := sorted(set(self.faults) - {*FAULTS, "none"}):
            raise ValueError(f"faults: {', '.join(unknown_faults)} is none of {', '.join(FAULTS)}")
