"""Values that describe jobs, groups and trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PriorityClass(Enum):
    """How trajectories of a job are ranked before others."""

    EVAL = "eval"
    """Evaluation: served before training."""
    TRAIN = "train"
    """Training."""
    BATCH = "batch"
    """Anything that can wait: served last."""


class TrajectoryEnd(Enum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    """It is finished and counts towards its group's quorum."""
    ABANDONED = "abandoned"
    """It was given up and does not count."""


@dataclass(frozen=True, slots=True)
class Group:
    """Siblings of one prompt.

    Attributes:
        group_id: Unique in the job.
        size: Trajectories in the group, the same in every member.
        quorum: Completed trajectories after which the others are redundant and are cancelled; None means `size`.
    """

    group_id: str
    size: int
    quorum: int | None = None


@dataclass(frozen=True, slots=True)
class JobDescription:
    """A job to open.

    Attributes:
        job_id: 1 to 256 characters, unique in the scheduler.
        weight: Share relative to other jobs; above 0.
        priority_class: Its class.
        max_actions: The most actions it may have queued or running at once; None means no limit of its own.
        max_staleness: A trajectory that began more than this many policy versions ago is cancelled; None: no bound.
    """

    job_id: str
    weight: float = 1.0
    priority_class: PriorityClass = PriorityClass.TRAIN
    max_actions: int | None = None
    max_staleness: int | None = None


@dataclass(frozen=True, slots=True)
class TrajectoryDescription:
    """A trajectory to open.

    Attributes:
        job_id: An open job.
        trajectory_id: 1 to 256 characters, unique in the job.
        group: Its group; None if it has none.
        idle_timeout_s: Without any action for so many seconds it is closed as abandoned; None takes the server's
            default (1 hour).
    """

    job_id: str
    trajectory_id: str
    group: Group | None = None
    idle_timeout_s: float | None = None
