"""How many groups there are, and what goes wrong in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class GroupsBenchSettings:
    """Sizes of the load; times in seconds."""

    size: Annotated[int, Setting("Seats of a group.", least=2)] = 8
    quorum: Annotated[int, Setting("Members that must complete.", least=1)] = 6
    batch_groups: Annotated[int, Setting("Groups in a batch.", least=1)] = 4
    live_groups: Annotated[int, Setting("Groups that run at once.", least=1)] = 8
    train_s: Annotated[float, Setting("What an optimiser step takes; rollouts go on meanwhile.", least=0.0)] = 0.8
    batches: Annotated[int, Setting("Batches that are measured, after one that is not.", least=1)] = 8
    steps: Annotated[int, Setting("Steps of a trajectory.", least=1)] = 4
    step_s: Annotated[float, Setting("What a step takes on average.", least=0.0)] = 0.25
    hanging: Annotated[float, Setting("The part of trajectories whose environment hangs.", least=0.0)] = 0.1
    crashing: Annotated[float, Setting("The part of trajectories whose environment crashes.", least=0.0)] = 0.1
    hang_s: Annotated[float, Setting("When a hanging step runs into its timeout.", least=0.1)] = 10.0
    seed: Annotated[int, Setting("Draws what goes wrong, and how long steps take.")] = 7

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_least(self)
