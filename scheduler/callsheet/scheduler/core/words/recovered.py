"""What the journal gives the core when a scheduler starts: the state that its records add up to."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.scheduler.core.words.costs import Account
from callsheet.scheduler.core.words.records import ActionSummary, ClosedAction, ManagerLeaves


@dataclass(slots=True)
class RecoveredJob:
    """An open job as the journal has it; see `JobLease` for `expired` and `left`, and `JobOpened` for the last two."""

    job_id: str
    spec: bytes
    policy_version: int
    expired: bool = False
    left: float | None = None
    begun_epoch: int = 0
    begun_sequence: int = 0
    cost: Account | None = None
    opened_at: float = 0.0


@dataclass(slots=True)
class RecoveredRollout:
    """The newest weights of a service as the journal has them; see `RolloutBegun` and `RolloutChanged`."""

    job_id: str
    service: str
    version: int
    epoch: int
    sequence: int
    plan: bytes
    reference: bytes = b""
    begun: bool = False


@dataclass(slots=True)
class RecoveredTrajectory:
    """A trajectory of an open job as the journal has it; `end` is empty while it is open.

    `closed_at` is None while it is. `began` is as `TrajectoryBegan` told.
    """

    job_id: str
    trajectory_id: str
    spec: bytes
    policy_version: int
    opened_at: float
    sandbox_id: str
    manager_id: str
    held: dict[str, int]
    held_cores: tuple[int, ...]
    end: str
    reason: str = ""
    command_timeout: float = 0.0
    group_cancelled: bool = False
    had_sandbox: bool = False
    closed_at: float | None = None
    died: bool = False
    began: bool = False
    cost: Account | None = None


@dataclass(slots=True)
class RecoveredAction:
    """An action of an open job as the journal has it.

    `state` is "queued", "dispatched" or a terminal state. For a finished action `spec` is empty: its outcome is read
    from the journal when somebody asks. `outcome_bytes` are those of its outcome and of what is kept of its spec.
    """

    job_id: str
    action_id: str
    trajectory_id: str
    body_hash: bytes
    spec: bytes
    state: str
    attempt: int
    epoch: int
    sequence: int
    manager_id: str
    submitted_at: float
    cancel_reason: str = ""
    finished_at: float | None = None
    outcome_bytes: int = 0
    copies_sandbox: bool = False
    incarnation: str = ""


@dataclass(slots=True)
class RecoveredFinished:
    """A trajectory in the buffer of an open job; see `TrajectoryBuffered`."""

    job_id: str
    trajectory_id: str
    group_id: str
    number: int
    policy_version: int
    opened_at: float
    finished_at: float
    result: bytes


@dataclass(slots=True)
class RecoveredBatch:
    """A batch of an open job; see `BatchTaken`. One without members was acknowledged, or went back."""

    job_id: str
    batch_id: str
    size: int
    lease_s: float
    policy_version: int
    trajectory_ids: tuple[str, ...]
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
    buffered: tuple[RecoveredFinished, ...] = ()
    batches: tuple[RecoveredBatch, ...] = ()
    drains: tuple[ManagerLeaves, ...] = ()
