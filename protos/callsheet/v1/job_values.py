"""Values of job.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from callsheet.v1 import buffer_values, common_values, job_pb2, weights_values
from callsheet.v1.values import mapping, seconds


class PriorityClass(Enum):
    """The rank of a job's trajectories."""

    EVAL = "eval"
    """Evaluation: served before training."""
    TRAIN = "train"
    """Training."""
    BATCH = "batch"
    """Anything that can wait: served last."""


PRIORITY_CLASS: Final[Mapping[int, PriorityClass]] = {
    1: PriorityClass.EVAL,
    2: PriorityClass.TRAIN,
    3: PriorityClass.BATCH,
}


class Opening(Enum):
    """The result of an open."""

    CREATED = "created"
    """It is new."""
    ATTACHED = "attached"
    """It was open already, with the same specification."""
    CLOSED = "closed"
    """A trajectory that was closed before: it stays closed. Also a new one whose group had its quorum already."""


OPENING: Final[Mapping[int, Opening]] = {
    1: Opening.CREATED,
    2: Opening.ATTACHED,
    3: Opening.CLOSED,
}


class OnInfra(Enum):
    """A group's treatment of a member that was lost to an INFRA failure, as often as its `infra_budget` allows.

    A member that is lost beyond that keeps its seat and has failed.
    """

    REPLACE = "replace"
    """It takes no seat: another trajectory joins in its place."""
    RETRY = "retry"
    """The same trajectory starts over: its client runs it again and does not close it. One that is closed as lost all
    the same keeps its seat."""
    MASK = "mask"
    """It keeps its seat, has no reward, and counts towards the quorum."""
    DROP = "drop"
    """The group goes on with a member less: no other joins, and the quorum is at most what is left of its size."""


ON_INFRA: Final[Mapping[int, OnInfra]] = {
    1: OnInfra.REPLACE,
    2: OnInfra.RETRY,
    3: OnInfra.MASK,
    4: OnInfra.DROP,
}


class TrajectoryEnd(Enum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    """It is finished and counts towards its group's quorum."""
    ABANDONED = "abandoned"
    """It was given up and does not count."""
    LOST = "lost"
    """It was lost to an INFRA failure and does not count; its group's `on_infra` settles its seat."""


TRAJECTORY_END: Final[Mapping[int, TrajectoryEnd]] = {
    1: TrajectoryEnd.COMPLETED,
    2: TrajectoryEnd.ABANDONED,
    3: TrajectoryEnd.LOST,
}


@dataclass(frozen=True, slots=True)
class JobDescription:
    """One training or evaluation run: the tenant.

    Attributes:
        job_id: 1 to 256 characters, unique in the scheduler.
        share: Fair share relative to other jobs, above 0 and at most 1,000,000; in a message 0 stands for 1. It is not
            an action's weight.
        priority_class: Its class.
        max_actions: The most actions it may have queued or running at once; None means no limit of its own.
        staleness: The rule for trajectories that fall behind the newest policy version; None if there is none.
        grace_s: Time that the job lives on after its last session ended. Then its actions are cancelled and its
            trajectories closed, while outcomes stay. Above 0; None takes the server's default (120 s). See `detached`.
        detached: Whether the job needs no session and never expires.
        idle_timeout_s: After so long without any work the job is closed, even while a session holds it. Work is an open
            action, an action that ends, or a request about the job, except to hold it. Above 0, at most 30 days; None
            takes the server's default (7 days), and means never for a detached job.
        dead_sandbox_is_infra: Whether an action whose sandbox dies while a command runs in it fails as INFRA. By
            default it fails as ENV, because a command there may have caused the death. So do later actions of the
            trajectory until its next reset.
        max_buffered: If its buffer has so many finished trajectories, no new one begins; if it has twice as many, a
            finish waits. At most 100,000; None takes the server's default (4,096).
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

    @classmethod
    def from_message(cls, message: job_pb2.JobSpec) -> Self:
        """Returns the value of a message."""
        return cls(
            message.job_id,
            message.share or 1.0,
            PRIORITY_CLASS.get(message.priority_class, PriorityClass.TRAIN),
            message.max_actions or None,
            Staleness.from_message(message.staleness) if message.HasField("staleness") else None,
            seconds(message.grace) if message.HasField("grace") else None,
            message.detached,
            seconds(message.idle_timeout) if message.HasField("idle_timeout") else None,
            message.dead_sandbox_is_infra,
            message.max_buffered or None,
        )


@dataclass(frozen=True, slots=True)
class Staleness:
    """A job's rule for trajectories that fall behind the newest policy version.

    A trajectory's staleness is the newest version less the newest when it was opened, counted up to its consumption. A
    rule without any limit paces new trajectories within 1 in Python's client.

    Attributes:
        max_versions: Evict: a live trajectory that is staler is cancelled; at least 1. None means that none is.
        admit_within: Admit: a new trajectory waits to begin while one more could make any staler than this when it is
            trained on. None paces nothing. A batch counts as a version, and as large as the newest requests usually
            allow. A batch with fewer trajectories waits while it would make unfinished ones too stale.
        select_within: Select: staler samples are dropped when a batch is taken, a group as a whole. None drops none.
    """

    max_versions: int | None = None
    admit_within: int | None = None
    select_within: int | None = None

    @classmethod
    def from_message(cls, message: job_pb2.Staleness) -> Self:
        """Returns the value of a message."""
        return cls(
            message.max_versions or None,
            message.admit_within if message.HasField("admit_within") else None,
            message.select_within if message.HasField("select_within") else None,
        )


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Siblings of one prompt.

    Attributes:
        group_id: Unique in the job.
        size: Trajectories in the group, 1 to 10,000; the same in every member.
        quorum: Completed trajectories after which the others are redundant and are cancelled; None means `size`.
        on_infra: The treatment of members that were lost to INFRA; the same in every member.
        infra_budget: The number of members that `on_infra` applies to, 0 or more; the same in every member. None takes
            `size`, and no bound for ON_INFRA_REPLACE. With ON_INFRA_RETRY clients keep it.
    """

    group_id: str
    size: int
    quorum: int | None = None
    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int | None = None

    @classmethod
    def from_message(cls, message: job_pb2.GroupSpec) -> Self:
        """Returns the value of a message."""
        return cls(
            message.group_id,
            message.size,
            message.quorum or None,
            ON_INFRA.get(message.on_infra, OnInfra.REPLACE),
            message.infra_budget if message.HasField("infra_budget") else None,
        )


@dataclass(frozen=True, slots=True)
class TrajectoryDescription:
    """One rollout.

    Attributes:
        job_id: An open job.
        trajectory_id: 1 to 256 characters, unique in the job.
        group: Its group; None if it has none.
        idle_timeout_s: Without any action for this long it is closed as abandoned; None takes the server's default (1
            hour).
        deadline_s: So long after it was opened it is closed as abandoned, whatever it does; above 0, and None means
            never.
    """

    job_id: str
    trajectory_id: str
    group: GroupDescription | None = None
    idle_timeout_s: float | None = None
    deadline_s: float | None = None

    @classmethod
    def from_message(cls, message: job_pb2.TrajectorySpec) -> Self:
        """Returns the value of a message."""
        return cls(
            message.job_id,
            message.trajectory_id,
            GroupDescription.from_message(message.group) if message.HasField("group") else None,
            seconds(message.idle_timeout) if message.HasField("idle_timeout") else None,
            seconds(message.deadline) if message.HasField("deadline") else None,
        )


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One open job.

    Attributes:
        spec: The job, with its defaults filled in.
        open_trajectories: Open trajectories.
        waiting_trajectories: Open trajectories that have actions and were not let begin yet.
        actions: Actions by state, for instance {"queued": 3}.
        failures: Failed actions by failure kind, for instance {"infra": 1}.
        policy_version: The newest published policy version.
        sessions: Client sessions that hold it now.
        expires_in_s: Time until it expires; None while a session holds it, and if it cannot expire.
        expired: Whether it has expired: its actions were cancelled and its trajectories closed. A session that comes
            back ends that.
        closes_in_s: Time until it is closed because it has expired; None if it has not.
        idle_closes_in_s: Time until it is closed as idle, if nothing happens in it; None while it has open actions, and
            if it never is.
        forgotten_actions: Finished actions of which only the ids are kept, so that they never run again.
        dead_sandboxes: Actions that failed because their sandbox died while a command ran in it: as ENV "state_lost",
            or as INFRA if the job wants that.
        rollouts: The progress of engines with the weights that it published last for each service.
        buffer: Its finished trajectories that no trainer has acknowledged yet.
        life: Distinguishes it from jobs that had its id before and were closed; later ones sort behind earlier ones.
        cost: The cost of all of its work until now, over restarts of the scheduler.
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
    rollouts: tuple[weights_values.RolloutStatus, ...] = ()
    buffer: buffer_values.BufferStatus = field(default_factory=buffer_values.BufferStatus)
    life: str = ""
    cost: common_values.Cost = field(default_factory=common_values.Cost)

    @property
    def job_id(self) -> str:
        """1 to 256 characters, unique in the scheduler."""
        return self.spec.job_id

    @classmethod
    def from_message(cls, message: job_pb2.JobStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            JobDescription.from_message(message.spec),
            message.open_trajectories,
            message.waiting_trajectories,
            mapping(message.actions),
            mapping(message.failures),
            message.policy_version,
            message.sessions,
            seconds(message.expires_in) if message.HasField("expires_in") else None,
            message.expired,
            seconds(message.closes_in) if message.HasField("closes_in") else None,
            seconds(message.idle_closes_in) if message.HasField("idle_closes_in") else None,
            message.forgotten_actions,
            message.dead_sandboxes,
            tuple(map(weights_values.RolloutStatus.from_message, message.rollouts)),
            buffer_values.BufferStatus.from_message(message.buffer),
            message.life,
            common_values.Cost.from_message(message.cost),
        )


@dataclass(frozen=True, slots=True)
class TrajectoryStatus:
    """One trajectory of an open job.

    Attributes:
        spec: The trajectory, with its defaults filled in.
        end: How it ended; None while it is open.
        reason: The reason why it was closed, as a sentence that is kept over restarts; empty while it is open.
        open_actions: Its actions that have no outcome yet.
        admitted: Whether it was let begin.
        sandbox_id: Its live sandbox; empty if it has none.
        manager_id: The manager that holds the sandbox.
        policy_version: The newest policy version when it was opened.
        cost: The cost of its actions until now, repeated attempts included, and of its sandbox between them.
    """

    spec: TrajectoryDescription
    end: TrajectoryEnd | None = None
    reason: str = ""
    open_actions: int = 0
    admitted: bool = False
    sandbox_id: str = ""
    manager_id: str = ""
    policy_version: int = 0
    cost: common_values.Cost = field(default_factory=common_values.Cost)

    @property
    def trajectory_id(self) -> str:
        """1 to 256 characters, unique in the job."""
        return self.spec.trajectory_id

    @classmethod
    def from_message(cls, message: job_pb2.TrajectoryStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            TrajectoryDescription.from_message(message.spec),
            TRAJECTORY_END.get(message.end),
            message.reason,
            message.open_actions,
            message.admitted,
            message.sandbox_id,
            message.manager_id,
            message.policy_version,
            common_values.Cost.from_message(message.cost),
        )


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
        cost: The cost of its members until now, lost ones too, except those that are forgotten.
    """

    spec: GroupDescription
    open: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    has_quorum: bool = False
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    cost: common_values.Cost = field(default_factory=common_values.Cost)

    @property
    def group_id(self) -> str:
        """Unique in the job."""
        return self.spec.group_id

    @classmethod
    def from_message(cls, message: job_pb2.GroupStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            GroupDescription.from_message(message.spec),
            tuple(message.open),
            tuple(message.completed),
            tuple(message.abandoned),
            tuple(message.lost),
            message.has_quorum,
            tuple(message.masked),
            tuple(message.dropped),
            common_values.Cost.from_message(message.cost),
        )
