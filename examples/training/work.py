"""How long an environment works, and how it ends: drawn from a seed and a name, so that all backends draw alike."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How the work of an environment ends."""

    WELL = "well"
    HANG = "hang"
    """It does not end by itself."""
    CRASH = "crash"
    """The environment is lost."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step's work.

    Attributes:
        seconds: How long it takes.
        ending: How it ends.
    """

    seconds: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class Load:
    """How environments behave.

    Attributes:
        work_s: Median seconds of a step; 0 takes none.
        slow: Share of environments that take five times as long.
        hanging: Share of those that hang until the limit.
        crashing: Share of those that crash.
        limit_s: The most seconds of a step.
        seed: Of all draws.
    """

    work_s: float = 0.0
    slow: float = 0.0
    hanging: float = 0.0
    crashing: float = 0.0
    limit_s: float = 30.0
    seed: int = 0

    def work(self, name: str) -> Work:
        """Returns the work of the step that has this name: log-normal, with a spread of half the median."""
        drawn = random.Random(hashlib.sha256(f"{self.seed}/{name}".encode()).digest())
        seconds, fate = self.work_s * drawn.lognormvariate(0.0, 0.5), drawn.random()
        if fate < self.hanging:
            return Work(seconds, Ending.HANG)
        if fate < self.hanging + self.crashing:
            return Work(seconds, Ending.CRASH)
        return Work(seconds * (5.0 if fate < self.hanging + self.crashing + self.slow else 1.0), Ending.WELL)
