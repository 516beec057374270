"""Descriptions of commands for node sharing, and its decisions about them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """How a running command shares its node.

    FOREGROUND commands get the cores that they can use. BACKGROUND ones stay runnable and get what is left: no cycle is
    lost while any of them could use it.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class KnownCommand:
    """Knowledge of a command when it starts.

    Attributes:
        command_id: Its id until it ends.
        predicted_use: Cores it will use in the foreground; below 1 for one that also waits for disks and sockets.
        demotable: Whether it may be put into the background. Not for rewards: a stall inside a test suite trips the
            suite's own timeouts and makes the reward wrong.
        weight: Its CPU seconds count this many times less when commands are ranked.
    """

    command_id: Hashable
    predicted_use: float
    demotable: bool = True
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        for name in ("predicted_use", "weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value}: must be finite and more than 0")


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A command is to be in this lane from now on."""

    command_id: Hashable
    lane: Lane
