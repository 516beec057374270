"""What there is to know of jobs, trajectories and groups. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callsheet.client.jobs import GroupDescription, JobDescription, TrajectoryDescription, TrajectoryEnd
from callsheet.client.weights import RolloutStatus


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
    """

    spec: GroupDescription
    open: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    has_quorum: bool = False

    @property
    def group_id(self) -> str:
        """Its id."""
        return self.spec.group_id
