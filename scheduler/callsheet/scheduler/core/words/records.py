"""Records that the core asks the journal to keep: one per durable change.

The core emits records, the shell hands them to the journal in order. A record names what changed and nothing else, so
that the journal may merge several records of one action into one row before it commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from callsheet.scheduler.core.words.costs import Account, Cost

MAX_FINISHED = 10_000
"""Finished actions of open jobs of which a summary is kept at hand; those of closed jobs have a setting."""

KEPT_SPEC_BYTES = 4_096
"""Specs of finished actions up to this size are kept with their outcomes."""


@dataclass(slots=True)
class Record:
    """A durable change."""


@dataclass(slots=True)
class JobOpened(Record):
    """A job was opened; `spec` is a serialized JobSpec, and its attempts have tokens greater than the one given."""

    job_id: str
    spec: bytes
    begun_epoch: int = 0
    begun_sequence: int = 0
    opened_at: float = 0.0


@dataclass(slots=True)
class JobClosed(Record):
    """A job was closed: everything under it may be forgotten. `reason` is a sentence, for people."""

    job_id: str
    reason: str = ""
    opened_at: float = 0.0
    closed_at: float = 0.0
    cost: Cost = field(default_factory=Cost)


@dataclass(slots=True)
class ClosedJobGrew(Record):
    """New cost of a job that was closed at this time; an attempt that outlived the job has ended."""

    job_id: str
    closed_at: float
    cost: Cost


@dataclass(slots=True)
class JobLease(Record):
    """How long a job lives on without a client session: until it expires, or is closed if it has `expired`.

    `left` is in seconds, as of about now; None while a session holds it.
    """

    job_id: str
    expired: bool
    left: float | None


@dataclass(slots=True)
class PolicyVersionPublished(Record):
    """The newest policy version of a job."""

    job_id: str
    version: int


@dataclass(slots=True)
class RolloutBegun(Record):
    """A job published weights for the engines of a service, in place of what it published for them before.

    `plan` is a serialized RolloutPlan; epoch and sequence are the rollout's token.
    """

    job_id: str
    service: str
    version: int
    epoch: int
    sequence: int
    plan: bytes


@dataclass(slots=True)
class RolloutChanged(Record):
    """The rollout of a service has another `reference`, a serialized CanaryAnswer, or its group has `begun`."""

    job_id: str
    service: str
    reference: bytes
    begun: bool


@dataclass(slots=True)
class TrajectoryOpened(Record):
    """A trajectory was opened; `spec` is a serialized TrajectorySpec, `group_id` empty if it has no group."""

    job_id: str
    trajectory_id: str
    spec: bytes
    policy_version: int
    opened_at: float
    group_id: str = ""


@dataclass(slots=True)
class TrajectoryBegan(Record):
    """A trajectory was let begin, with this policy version.

    It is told where that is a newer version than at its opening, and where nothing else that is kept tells of it.
    """

    job_id: str
    trajectory_id: str
    policy_version: int


@dataclass(slots=True)
class TrajectoryPlaced(Record):
    """Place of a trajectory's sandbox; the ids are empty when it is gone. `held` maps resources to units kept by it.

    `died` is true if the sandbox is gone, or will be, because it died under a command that ran in it.
    """

    job_id: str
    trajectory_id: str
    sandbox_id: str
    manager_id: str
    held: dict[str, int]
    held_cores: tuple[int, ...]
    died: bool = False


@dataclass(slots=True)
class CostGrown(Record):
    """New accounts of the cost of a job and of some of its trajectories."""

    job_id: str
    of_job: Account
    of_trajectories: dict[str, Account]


@dataclass(slots=True)
class TrajectoryClosed(Record):
    """A trajectory ended; `end` is a value of `TrajectoryEnd`, `reason` a sentence, `reward` that of its result."""

    job_id: str
    trajectory_id: str
    end: str
    reason: str
    closed_at: float
    reward: float | None = None


@dataclass(slots=True)
class TrajectoryCommandTimeout(Record):
    """The newest env_reset of a trajectory has another execution timeout for its commands; 0 s means none."""

    job_id: str
    trajectory_id: str
    command_timeout: float


@dataclass(slots=True)
class GroupCancelled(Record):
    """The group of this trajectory, its first member, takes no more members."""

    job_id: str
    trajectory_id: str


@dataclass(slots=True)
class ActionSubmitted(Record):
    """An action was accepted; `spec` is its serialized ActionSpec, `submitted_at` seconds since the epoch.

    `copies_sandbox`: it was settled that it runs in a copy of its trajectory's sandbox. `kind` is its kind's number.
    """

    job_id: str
    action_id: str
    trajectory_id: str
    body_hash: bytes
    spec: bytes
    submitted_at: float
    copies_sandbox: bool = False
    kind: int = 0


@dataclass(slots=True)
class ActionDispatched(Record):
    """An attempt is sent to the process `incarnation` of a manager.

    The dispatch of an action that may begin only once waits for this record.
    """

    job_id: str
    action_id: str
    attempt: int
    epoch: int
    sequence: int
    manager_id: str
    incarnation: str


@dataclass(slots=True)
class ActionCancelRequested(Record):
    """An action that was dispatched is to be cancelled; its outcome follows once its attempt has ended."""

    job_id: str
    action_id: str
    reason: str


@dataclass(slots=True)
class ActionRequeued(Record):
    """The attempt ended without an outcome; the next one will be `attempt + 1`."""

    job_id: str
    action_id: str
    attempt: int


@dataclass(slots=True)
class ActionSummary:
    """Summary of an action that has its outcome, kept to explain the action. Times are seconds since the epoch.

    Attributes:
        kind: Number of its kind.
        state: Name of its terminal state.
        service: The service that it asked for; empty for any of its kind.
        failure: Name of the kind of failure; empty if it did not fail.
        reason: The reason of a failure, a cancel or an expiry; else empty.
        manager_id: The manager of its last attempt; empty if there was none.
        node_id: The node of that manager; empty if it was not known.
        traceparent: The span that caused it, as W3C Trace Context writes it; empty if none was given.
        held: Resources that its attempts held and used; see `Cost`.
        story: Its events, in order; the journal keeps the last ones, and those only once the job is closed.
    """

    job_id: str
    action_id: str
    kind: int
    state: str
    label: str
    failure: str
    reason: str
    attempts: int
    manager_id: str
    node_id: str
    submitted_at: float
    ended_at: float
    queue_s: float
    execution_s: float
    traceparent: str
    task: str
    service: str
    held: dict[str, float]
    used: dict[str, float]
    story: list[tuple[float, str]]


@dataclass(slots=True)
class ActionFinished(Record):
    """The action has its outcome: a terminal state name and a serialized Outcome. `keeps_spec`: its spec stays.

    The trajectory is for who follows what is committed; the journal knows it.
    """

    job_id: str
    action_id: str
    state: str
    outcome: bytes
    finished_at: float
    summary: ActionSummary | None = None
    keeps_spec: bool = False
    trajectory_id: str = ""


@dataclass(slots=True)
class WorkForgotten(Record):
    """Finished actions and closed trajectories of an open job of which `entries` stay; see `ForgottenWork`."""

    job_id: str
    action_ids: tuple[str, ...]
    entries: bytes
    trajectory_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class TrajectoryBuffered(Record):
    """A trajectory finished with a result, a serialized TrajectoryResult, and is the job's `number`-th to do so."""

    job_id: str
    trajectory_id: str
    group_id: str
    number: int
    policy_version: int
    opened_at: float
    finished_at: float
    result: bytes


@dataclass(slots=True)
class BufferedTrajectoriesRemoved(Record):
    """Finished trajectories left the buffer of their job without having been in a batch that was acknowledged."""

    job_id: str
    trajectory_ids: tuple[str, ...]


@dataclass(slots=True)
class BatchTaken(Record):
    """A batch was leased, for `lease_s` seconds; `size` is the most that was asked for, the version the newest then."""

    job_id: str
    batch_id: str
    size: int
    lease_s: float
    policy_version: int
    trajectory_ids: tuple[str, ...]


@dataclass(slots=True)
class BatchReturned(Record):
    """A batch went back: what was in it may be given out again. Of the `forgotten` ones not even the id stays."""

    job_id: str
    batch_id: str
    forgotten: tuple[str, ...] = ()


@dataclass(slots=True)
class BatchAcknowledged(Record):
    """A batch was acknowledged: what was in it never comes again. Of the `forgotten` ones not even the id stays.

    Its `size` is as it was asked for: a job is paced by it until the next one is.
    """

    job_id: str
    batch_id: str
    trajectory_ids: tuple[str, ...]
    forgotten: tuple[str, ...] = ()
    size: int = 0


@dataclass(slots=True)
class SchedulerAlive(Record):
    """A scheduler is running, at this time in seconds since the epoch."""

    at: float


@dataclass(slots=True)
class SchedulerAway(Record):
    """The scheduler of an epoch began at `until`, and the one before may have ended at `since`.

    Earlier such times that ended at or before `forgotten` concern nothing any more. All in seconds since the epoch.
    """

    epoch: int
    since: float
    until: float
    forgotten: float


@dataclass(slots=True)
class ManagerLeaves(Record):
    """The process `incarnation` of a manager was asked to leave by a time, which is infinite without a deadline.

    `leaves_by` is None once the process is gone.
    """

    manager_id: str
    incarnation: str
    leaves_by: float | None


@dataclass(slots=True)
class ClosedAction:
    """The summary of an action whose job was closed; numbers grow in the order of these closes.

    `reason` says why its job was closed, where its client did not ask for it.
    """

    number: int
    closed_at: float
    summary: ActionSummary
    reason: str = ""


@dataclass(slots=True)
class ClosedActionsKept(Record):
    """Summaries of actions whose job was closed just now; those numbered up to `forgotten` may be deleted."""

    kept: tuple[ClosedAction, ...]
    forgotten: int
