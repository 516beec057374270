"""State that the journal gives the core when a scheduler starts: the sum of its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from callsheet.scheduler.core.words.costs import Account
from callsheet.scheduler.core.words.records import (
    ActionSubmitted,
    ActionSummary,
    BatchTaken,
    ClosedAction,
    JobOpened,
    ManagerLeaves,
    RolloutBegun,
    TrajectoryBuffered,
    TrajectoryOpened,
)


@dataclass(slots=True)
class RecoveredJob(JobOpened):
    """An open job: as it was opened, and what changed since. See `JobLease` for `expired` and `left`."""

    policy_version: int = 0
    expired: bool = False
    left: float | None = None
    cost: Account | None = None


@dataclass(slots=True)
class RecoveredRollout(RolloutBegun):
    """The newest weights of a service; see `RolloutChanged`."""

    reference: bytes = b""
    begun: bool = False


@dataclass(slots=True)
class RecoveredTrajectory(TrajectoryOpened):
    """A trajectory of an open job: as it was opened, and what changed since.

    `end` is empty and `closed_at` None while it is open. `began` means that there was a `TrajectoryBegan`.
    """

    sandbox_id: str = ""
    manager_id: str = ""
    held: dict[str, int] = field(default_factory=dict)
    held_cores: tuple[int, ...] = ()
    end: str = ""
    reason: str = ""
    command_timeout: float = 0.0
    group_cancelled: bool = False
    had_sandbox: bool = False
    closed_at: float | None = None
    died: bool = False
    began: bool = False
    cost: Account | None = None


@dataclass(slots=True)
class RecoveredAction(ActionSubmitted):
    """An action of an open job: as it was submitted, and what changed since.

    `state` is "queued", "dispatched" or a terminal state. For a finished action `spec` is empty: its outcome is read
    from the journal when somebody asks. `outcome_bytes` are those of its outcome and of what is kept of its spec.
    """

    state: str = "queued"
    attempt: int = 0
    epoch: int = 0
    sequence: int = 0
    manager_id: str = ""
    incarnation: str = ""
    cancel_reason: str = ""
    finished_at: float | None = None
    outcome_bytes: int = 0


@dataclass(slots=True)
class RecoveredBatch(BatchTaken):
    """A batch of an open job. One without members was acknowledged, or went back."""

    acknowledged: bool = False


@dataclass(slots=True)
class Recovered:
    """Everything a restarted scheduler continues from. Actions come in the order of their first commit.

    Attributes:
        finished: Summaries of the newest actions of open jobs that have their outcome.
        closed: Summaries of actions of closed jobs, by growing number.
        forgotten: Entries of what was forgotten, with the ids of their jobs; see `ForgottenWork`.
        alive_at: When a scheduler was last known to run; None if the journal does not say.
        away: Times without a scheduler, each as (since, until); see `SchedulerAway`.
        buffered: Finished trajectories, by growing number.
        batches: In the order in which they were taken.
        drains: Managers that were asked to leave and were there.
    """

    jobs: tuple[RecoveredJob, ...] = ()
    trajectories: tuple[RecoveredTrajectory, ...] = ()
    actions: tuple[RecoveredAction, ...] = ()
    finished: tuple[ActionSummary, ...] = ()
    closed: tuple[ClosedAction, ...] = ()
    forgotten: tuple[tuple[str, bytes], ...] = ()
    alive_at: float | None = None
    away: tuple[tuple[float, float], ...] = ()
    rollouts: tuple[RecoveredRollout, ...] = ()
    buffered: tuple[TrajectoryBuffered, ...] = ()
    batches: tuple[RecoveredBatch, ...] = ()
    drains: tuple[ManagerLeaves, ...] = ()
