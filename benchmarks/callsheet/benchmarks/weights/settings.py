"""How much load there is while weights change, and how often they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.common import comma_separated
from callsheet.options.declaration import Setting, check_least

MODES = ("drain", "abort", "keep")


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
