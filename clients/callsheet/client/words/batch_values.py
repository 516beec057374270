"""Values that describe finished trajectories and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MAX_BATCH: Final = 2048


class Settlement(Enum):
    """A taker's intent with its batch."""

    ACKNOWLEDGE = "acknowledge"
    """It was trained on: it never comes again."""
    GIVE_BACK = "give_back"
    """It goes back whole."""
    EXTEND = "extend"
    """Its lease begins anew."""


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """The last word of a rollout on its trajectory.

    Attributes:
        reward: Its worth; a finite number.
        payload: The trainer's data of it; above 4 KiB it travels through the payload store.
    """

    reward: float
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class FinishedTrajectory:
    """A finished trajectory that no trainer has acknowledged yet.

    Attributes:
        trajectory_id: Its id.
        group_id: Its group; empty if it has none.
        reward: Its worth.
        payload: The rollout's data for the trainer; empty in listings.
        policy_version: The newest version when it was opened.
        staleness: The newest version less that one: as its batch was taken, or now.
        took_s: Seconds from its opening to its end.
        waited_s: Seconds since its end.
        batch_id: The batch that it was given out with; empty while it is in none.
        whole: Whether its group is whole, so that it may be given out.
    """

    trajectory_id: str
    group_id: str = ""
    reward: float = 0.0
    payload: bytes = field(default=b"", repr=False)
    policy_version: int = 0
    staleness: int = 0
    took_s: float = 0.0
    waited_s: float = 0.0
    batch_id: str = ""
    whole: bool = True


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A trainer's wish for a batch; see `Job.take_batch`."""

    batch_id: str
    at_least: int
    at_most: int
    wait_s: float
    lease_s: float | None


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The samples of a batch.

    Attributes:
        batch_id: Its id.
        trajectories: The oldest group first, and groups whole; none if there were too few.
        policy_version: The newest version when it was taken.
        lease_s: How long its lease went on when it came.
    """

    batch_id: str
    trajectories: tuple[FinishedTrajectory, ...] = ()
    policy_version: int = 0
    lease_s: float = 0.0
