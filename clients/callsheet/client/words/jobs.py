"""Jobs, groups and trajectories: their descriptions, their status, their results and batches. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from callsheet.client.words.costs import NO_COST, Cost
from callsheet.client.words.outcomes import FailureKind
from callsheet.client.words.weights import RolloutStatus


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


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A batch that a trainer has taken: its id, its trajectories, and how long its lease goes on."""

    batch_id: str
    trajectories: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class LengthShare:
    """Trajectories of about one length, and the part of them that was trained on.

    Attributes:
        up_to_s: They took at most so long.
        trajectories: How many are over: trained on, dropped or evicted.
        trained: The part of them that was trained on, 0 to 1.
    """

    up_to_s: float
    trajectories: int
    trained: float


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """A job's buffer of finished trajectories. Counts over time begin at the scheduler's start.

    Attributes:
        ready: Trajectories that may be taken now.
        leased: Trajectories in batches that are leased.
        incomplete: Finished trajectories that wait for the rest of their group.
        bound: From so many that are ready or leased on, no new trajectory begins.
        held_up: Why new trajectories do not begin now, as a sentence; empty if they may.
        batches: The leased batches.
        waiting_takers: Requests that wait for a batch.
        counts: Trajectories that finished with a result, were trained on, or were dropped: "finished", "trained",
            "stale" and "evicted".
        staleness: Trajectories that were trained on, by their staleness.
        lengths: The part that was trained on by length, in about four quantiles.
    """

    ready: int = 0
    leased: int = 0
    incomplete: int = 0
    bound: int = 0
    held_up: str = ""
    batches: tuple[LeasedBatch, ...] = ()
    waiting_takers: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    lengths: tuple[LengthShare, ...] = ()


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One open job.

    Attributes:
        spec: The job, with its defaults filled in.
        open_trajectories: Open trajectories.
        waiting_trajectories: Open trajectories that have actions and may not begin yet.
        actions: Actions by state, for instance {"queued": 3}.
        failures: Failed actions by failure kind, for instance {"infra": 1}.
        policy_version: The newest published policy version.
        sessions: Client sessions that hold it now.
        expires_in_s: Time until it expires; None while a session holds it, and where it cannot expire (any more).
        expired: Its actions were cancelled and its trajectories closed. A session that comes back ends that.
        closes_in_s: Time until it is closed, where it has expired; else None.
        idle_closes_in_s: Time until it is closed as idle, if nothing happens in it; None while it has open actions, and
            where it never is.
        forgotten_actions: Finished actions of which only the ids are kept, so that they never run again.
        dead_sandboxes: Actions that failed because their sandbox died while a command ran in it.
        rollouts: How far the weights are that it published last for each service.
        buffer: Its finished trajectories that no trainer has acknowledged yet.
        life: Tells it from jobs that had its id before and were closed; later ones sort behind earlier ones.
        cost: What all of its work cost until now, over restarts of the scheduler.
    """

    spec: JobDescription
    open_trajectories: int = 0
    waiting_trajectories: int = 0
    actions: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    policy_version: int = 0
    sessions: int = 0
    expires_in_s: float | None = None
    expired: bool = False
    closes_in_s: float | None = None
    idle_closes_in_s: float | None = None
    forgotten_actions: int = 0
    dead_sandboxes: int = 0
    rollouts: tuple[RolloutStatus, ...] = ()
    buffer: BufferStatus = field(default_factory=BufferStatus)
    life: str = ""
    cost: Cost = NO_COST

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.spec.job_id


@dataclass(frozen=True, slots=True)
class TrajectoryStatus:
    """One trajectory of an open job.

    Attributes:
        spec: The trajectory, with its defaults filled in.
        end: How it ended; None while it is open.
        reason: Why it was closed, as a sentence; empty while it is open.
        open_actions: Its actions that have no outcome yet.
        admitted: Whether it was let begin.
        sandbox_id: Its live sandbox; empty if it has none.
        manager_id: The manager that holds the sandbox.
        policy_version: The newest policy version when it was opened.
        cost: What its actions cost until now, and its sandbox between them.
    """

    spec: TrajectoryDescription
    end: TrajectoryEnd | None = None
    reason: str = ""
    open_actions: int = 0
    admitted: bool = False
    sandbox_id: str = ""
    manager_id: str = ""
    policy_version: int = 0
    cost: Cost = NO_COST

    @property
    def trajectory_id(self) -> str:
        """Its id."""
        return self.spec.trajectory_id


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group of an open job.

    Attributes:
        spec: The group, with its defaults filled in.
        open: Ids of its open members.
        completed: Ids of members that completed.
        abandoned: Ids of members that were closed otherwise and keep their seats.
        lost: Ids of members that were lost to INFRA and take no seat.
        has_quorum: Whether it has its quorum.
        masked: Ids of lost members that are masked; they are among `abandoned` too.
        dropped: Ids of lost members that were dropped; they are among `abandoned` too.
        cost: What its members cost until now, lost ones too, except those that are forgotten.
    """

    spec: GroupDescription
    open: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    has_quorum: bool = False
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    cost: Cost = NO_COST

    @property
    def group_id(self) -> str:
        """Its id."""
        return self.spec.group_id
