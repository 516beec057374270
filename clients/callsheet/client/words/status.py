"""The status of jobs, trajectories and groups. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callsheet.client.words.jobs import GroupDescription, JobDescription, TrajectoryDescription, TrajectoryEnd
from callsheet.client.words.weights import RolloutStatus


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
    """

    spec: TrajectoryDescription
    end: TrajectoryEnd | None = None
    reason: str = ""
    open_actions: int = 0
    admitted: bool = False
    sandbox_id: str = ""
    manager_id: str = ""
    policy_version: int = 0

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
    """

    spec: GroupDescription
    open: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    has_quorum: bool = False
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def group_id(self) -> str:
        """Its id."""
        return self.spec.group_id
