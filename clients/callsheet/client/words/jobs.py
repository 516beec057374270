"""Values that describe jobs, groups and trajectories."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from callsheet.client.words.outcomes import FailureKind


class PriorityClass(Enum):
    """How trajectories of a job are ranked before others."""

    EVAL = "eval"
    """Evaluation: served before training."""
    TRAIN = "train"
    """Training."""
    BATCH = "batch"
    """Anything that can wait: served last."""


class Opening(Enum):
    """The result of an open."""

    CREATED = "created"
    """It is new."""
    ATTACHED = "attached"
    """It was open already, with the same specification."""
    CLOSED = "closed"
    """A trajectory that was closed before: it stays closed."""


class TrajectoryEnd(Enum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    """It is finished and counts towards its group's quorum."""
    ABANDONED = "abandoned"
    """It was given up and does not count."""
    LOST = "lost"
    """It was lost to an INFRA failure and does not count; its group's `on_infra` settles its seat."""


class OnInfra(Enum):
    """A group's treatment of a lost member, as often as its budget allows; then such a member has failed."""

    REPLACE = "replace"
    """It takes no seat: another trajectory joins in its place."""
    RETRY = "retry"
    """The same trajectory starts over, with a fresh sandbox once it resets."""
    MASK = "mask"
    """It keeps its seat, has no reward, and counts towards the quorum."""
    DROP = "drop"
    """The group goes on with a member less, and its quorum is at most its remaining size."""


LOST_TO_INFRA = frozenset({FailureKind.INFRA})


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The effect of failed rollouts on the groups of a job.

    A failure of another kind abandons its member, which keeps its seat and tells the failure as its reason. It is
    neither masked nor replaced.

    Attributes:
        on_infra: The treatment of lost members.
        infra_budget: For how many members of a group, or retries of RETRY; None means the group's size.
        lost_to: Kinds of failure that a member is lost to.
    """

    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int | None = None
    lost_to: frozenset[FailureKind] = LOST_TO_INFRA


DEFAULT_ADMIT_WITHIN = 1
"""The limits of `Staleness()` without arguments."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """A job's rule for trajectories that fall behind the newest policy version.

    A trajectory's staleness is the newest version less the newest when it was opened, counted up to its consumption.
    `Staleness()` paces within 1. Without `admit_within` nothing is paced.

    Attributes:
        max_versions: Evict: a live trajectory that is staler is cancelled; at least 1. None evicts none.
        admit_within: Admit: a new trajectory waits to begin while one more could make any staler than this when it is
            trained on; 0 or more. A batch counts as a version, and as large as `take_batch` usually allows. One with
            fewer trajectories waits while it would make unfinished ones too stale.
        select_within: Select: staler samples are dropped when a batch is taken, a group as a whole; 0 or more.
    """

    max_versions: int | None = None
    _: KW_ONLY
    admit_within: int | None = None
    select_within: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Siblings of one prompt.

    Attributes:
        group_id: Unique in the job.
        size: Trajectories in the group, the same in every member.
        quorum: Completed trajectories after which the others are redundant and are cancelled; None means `size`.
        on_infra: The treatment of members that were lost to INFRA, the same in every member.
        infra_budget: For how many, the same in every member; None means `size`.
    """

    group_id: str
    size: int
    quorum: int | None = None
    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int | None = None


@dataclass(frozen=True, slots=True)
class JobDescription:
    """A job to open.

    Attributes:
        job_id: 1 to 256 characters, unique in the scheduler.
        share: Fair share relative to other jobs; above 0.
        priority_class: Its class.
        max_actions: The most actions it may have queued or running at once; None means no limit of its own.
        staleness: The rule for trajectories that fall behind the newest policy version; None: there is none.
        grace_s: How many seconds the job lives on after its last session ended; then its actions are cancelled and its
            trajectories closed, while outcomes stay. None takes the server's default (120 s).
        detached: The job needs no session and never expires.
        idle_timeout_s: After so many seconds without any work the job is closed, even while a session holds it. None
            takes the server's default (7 days), and means never if detached.
        dead_sandbox_is_infra: An action whose sandbox dies while a command runs in it fails as INFRA. By default it
            fails as ENV, as a command there may have caused the death, to have its sample dropped.
        max_buffered: From so many finished trajectories in its buffer on no new one begins, and from twice as many on
            `finish` waits; None takes the server's default (4,096).
    """

    job_id: str
    share: float = 1.0
    priority_class: PriorityClass = PriorityClass.TRAIN
    max_actions: int | None = None
    staleness: Staleness | None = None
    grace_s: float | None = None
    detached: bool = False
    idle_timeout_s: float | None = None
    dead_sandbox_is_infra: bool = False
    max_buffered: int | None = None


@dataclass(frozen=True, slots=True)
class TrajectoryDescription:
    """A trajectory to open.

    Attributes:
        job_id: An open job.
        trajectory_id: 1 to 256 characters, unique in the job.
        group: Its group; None if it has none.
        idle_timeout_s: Without any action for so many seconds it is closed as abandoned; None takes the server's
            default (1 hour).
        deadline_s: So many seconds after it was opened it is closed as abandoned, whatever it does; None means never.
    """

    job_id: str
    trajectory_id: str
    group: GroupDescription | None = None
    idle_timeout_s: float | None = None
    deadline_s: float | None = None
