"""What `callsheet bench real` runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RealSettings:
    """A one-shot step of coding trajectories, short enough for real processes.

    Attributes:
        trajectories: Run at once.
        turns: Of each trajectory, at most.
        cores: Cores to schedule; None for all that this process may use.
        generation_scale: Factor on the workload's generation times.
        longest_s: Commands are cut to so many CPU seconds.
        seed: Trajectories are drawn from it.
    """

    trajectories: int = 12
    turns: int = 8
    cores: int | None = None
    generation_scale: float = 0.4
    longest_s: float = 6.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is not above 0; the message names it.
        """
        for name in ("trajectories", "turns", "generation_scale", "longest_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0, got {getattr(self, name)}")
