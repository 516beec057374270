"""What `callsheet bench real` runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import PathRule, Setting, check_least


@dataclass(frozen=True, slots=True)
class RealSettings:
    """A one-shot step of coding trajectories, short enough for real processes."""

    trajectories: Annotated[int, Setting("Run at once.", least=1)] = 12
    turns: Annotated[int, Setting("Of each trajectory, at most.", least=1)] = 8
    cores: Annotated[int | None, Setting("Cores to schedule.", default_text="all", least=1)] = None
    generation_scale: Annotated[float, Setting("Factor on the coding workload's generation times.", least=0.01)] = 0.4
    longest_s: Annotated[
        float, Setting("Commands are cut to so much CPU time.", flag="--longest", metavar="SECONDS", least=0.1)
    ] = 6.0
    trace: Annotated[
        Path | None,
        Setting(
            "File for what callsheet ran, which bench sim --trace replays.",
            default_text="none",
            path=PathRule(directory=False, file=True),
        ),
    ] = None
    seed: Annotated[int, Setting("Trajectories are drawn from it.", least=0)] = 1

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is too small; the message names it.
        """
        check_least(self)
