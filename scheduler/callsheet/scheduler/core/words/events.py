"""Events of the core. Every change of its state is one of these, with the time at which it happened.

Nothing changes an event once it is made. The classes here, in `commands` and in `records` are not frozen all the same:
a dozen are made for every action, and a frozen one takes twice as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from callsheet.scheduler.core.words.cached_tokens import GeneratedTokens
from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.engine_weights import PublishRight, WeightsOffer
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionRequest,
    FailureKind,
    JobRequest,
    TimeoutKind,
    Token,
    TrajectoryEnd,
    TrajectoryRequest,
    TrajectoryResult,
)
from callsheet.scheduler.core.words.peers import BatchTaker, ClientSession, ManagerSession, Usage, Watcher
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import (
    NodeDescription,
    RunningAttempt,
    SandboxRef,
    ServiceDescription,
    ServiceState,
)


@dataclass(slots=True)
class ReplyTo:
    """Address of the answer to a request.

    Attributes:
        session: What takes the answer.
        sequence: Of the request in its session.
        holds: Whether it is a client session, which holds the jobs that its requests name until it ends.
        told: Told the result besides; the refusal, or None once the request is carried out.
    """

    session: ClientSession
    sequence: int
    holds: bool = False
    told: Callable[[RefusedError | None], None] | None = None


class Event:
    """An event of the core."""

    __slots__ = ()


@dataclass(slots=True)
class Request(Event):
    """Request of a client or an operator."""

    reply_to: ReplyTo


@dataclass(slots=True)
class JobOpenRequested(Request):
    """A client opens a job."""

    job: JobRequest


@dataclass(slots=True)
class JobCloseRequested(Request):
    """A client closes a job."""

    job_id: str


@dataclass(slots=True)
class JobHoldRequested(Request):
    """A client session holds a job until it ends."""

    job_id: str


@dataclass(slots=True)
class JobReleaseRequested(Request):
    """A client session holds a job no longer."""

    job_id: str


@dataclass(slots=True)
class SessionEnded(Event):
    """A client session is over: it holds nothing any more."""

    session: ClientSession


@dataclass(slots=True)
class TrajectoryOpenRequested(Request):
    """A client opens a trajectory."""

    trajectory: TrajectoryRequest


@dataclass(slots=True)
class TrajectoryCloseRequested(Request):
    """A client closes a trajectory; with a `result` it enters the buffer of its job."""

    job_id: str
    trajectory_id: str
    end: TrajectoryEnd
    result: TrajectoryResult | None = None
    reason: str = ""


@dataclass(slots=True)
class BatchRequested(Request):
    """A trainer wants `at_least` to `at_most` finished trajectories, under an id that it has chosen."""

    job_id: str
    batch_id: str
    at_least: int
    at_most: int
    lease_s: float
    taker: BatchTaker


class Settlement(Enum):
    """Decision of a trainer about a batch that it has taken."""

    ACKNOWLEDGE = "acknowledge"
    GIVE_BACK = "give_back"
    EXTEND = "extend"


@dataclass(slots=True)
class BatchMissed(Event):
    """The rpc of a request for a batch has ended without the batch."""

    job_id: str
    batch_id: str
    taker: BatchTaker


@dataclass(slots=True)
class BatchSettled(Request):
    """A trainer is done with a batch, or has its lease begin anew."""

    job_id: str
    batch_id: str
    settlement: Settlement


@dataclass(slots=True)
class WorkCancelRequested(Request):
    """A client gives up what is unfinished in a job, or in a group or a trajectory of it where one is named."""

    job_id: str
    group_id: str
    trajectory_id: str
    reason: str


@dataclass(slots=True)
class SubmitRequested(Request):
    """A client submits an action; `watcher` (if any) wants its outcome."""

    request: ActionRequest
    watcher: Watcher | None


@dataclass(slots=True)
class OutcomeRequested(Request):
    """Somebody wants the outcome of an action that was submitted before."""

    key: ActionKey
    watcher: Watcher


@dataclass(slots=True)
class CancelRequested(Request):
    """A client cancels an action."""

    key: ActionKey
    reason: str


@dataclass(slots=True)
class PolicyPublished(Request):
    """A job's trainer has a new policy version, and perhaps weights for engines; `right` is None for all services."""

    job_id: str
    version: int
    offer: WeightsOffer | None = None
    right: PublishRight | None = None


@dataclass(slots=True)
class ManagerJoined(Event):
    """A manager registered, for the first time or again; `session` is where its commands go."""

    session: ManagerSession
    manager_id: str
    incarnation: str
    node: NodeDescription
    services: tuple[ServiceDescription, ...]
    running: tuple[RunningAttempt, ...] = ()
    sandboxes: tuple[SandboxRef, ...] = ()
    capabilities: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ManagerDisconnected(Event):
    """A manager's stream broke; its attempts go on."""

    session: ManagerSession
    manager_id: str


@dataclass(slots=True)
class ManagerHeartbeat(Event):
    """A manager is alive. The first one after a registration says that all kept ends have been sent.

    `session` is the stream it came on; on one that another has replaced it says nothing. None is not checked.
    `services` are those whose state is told anew.
    """

    manager_id: str
    session: ManagerSession | None = None
    services: tuple[ServiceState, ...] = ()


@dataclass(slots=True)
class ManagerDraining(Event):
    """A manager takes no new attempts; `session` as for heartbeats."""

    manager_id: str
    session: ManagerSession | None = None


@dataclass(slots=True)
class AttemptStarted(Event):
    """A manager began an attempt."""

    manager_id: str
    token: Token


@dataclass(slots=True)
class AttemptProgressed(Event):
    """An attempt is alive; `execution_s` is its execution clock in seconds, None if not told."""

    manager_id: str
    token: Token
    execution_s: float | None = None


@dataclass(slots=True)
class AttemptSucceeded:
    """How an attempt ended: well. `result` is encoded; the ids are set for an env_reset, which made that sandbox."""

    result: bytes
    sandbox_id: str = ""
    trajectory_id: str = ""
    generated: GeneratedTokens | None = None


@dataclass(slots=True)
class AttemptFailed:
    """How an attempt ended: in a failure; `partial` is what it had produced, encoded."""

    kind: FailureKind
    reason: str
    message: str = ""
    partial: bytes | None = None
    timeout: TimeoutKind = TimeoutKind.NONE
    retry_after: float = 0.0


@dataclass(slots=True)
class AttemptCancelled:
    """How an attempt ended: stopped on request; `partial` is what it had produced, encoded."""

    partial: bytes | None = None


AttemptResult = AttemptSucceeded | AttemptFailed | AttemptCancelled


@dataclass(slots=True)
class AttemptEnded(Event):
    """An attempt ended.

    Attributes:
        waited_s: What it waited for at its manager, in seconds by cause.
        sandbox_held_mib: Memory that its trajectory's sandbox holds now that it rests; 0 if that is not told.
        cost: What it cost.
    """

    manager_id: str
    token: Token
    key: ActionKey
    attempt: int
    result: AttemptResult
    started: bool
    execution_s: float
    body_hash: bytes
    usage: Usage | None = None
    waited_s: Mapping[str, float] = field(default_factory=dict)
    sandbox_held_mib: int = 0
    cost: Cost = field(default_factory=Cost)


def body_bytes(happened: Iterable[Event]) -> int:
    """Bytes of the bodies of submits and of the results of attempts among events; all else in them is small."""
    size = 0
    for event in happened:
        if type(event) is SubmitRequested:
            size += len(event.request.spec)
        elif type(event) is AttemptEnded:
            size += result_bytes(event.result)
    return size


def result_bytes(result: AttemptResult) -> int:
    """Bytes of what an attempt returned or left behind."""
    if type(result) is AttemptSucceeded:
        return len(result.result)
    return len(result.partial or b"") if isinstance(result, AttemptFailed | AttemptCancelled) else 0


@dataclass(slots=True)
class SandboxLost(Event):
    """A sandbox is gone without having been released."""

    manager_id: str
    sandbox: SandboxRef
    reason: str


@dataclass(slots=True)
class DrainRequested(Request):
    """An operator takes a manager out of service.

    Attributes:
        deadline: Seconds after which it leaves with whatever it still has; infinite: once its last sandbox ends.
        dry_run: Change nothing; refuse what would be refused.
    """

    manager_id: str
    deadline: float = inf
    dry_run: bool = False


@dataclass(slots=True)
class HealRequested(Request):
    """An operator has the quarantined engines of a manager go back to the weights that they were started with."""

    manager_id: str


@dataclass(slots=True)
class TimerFired(Event):
    """The time of the next deadline has come."""


@dataclass(slots=True)
class PlanReady(Event):
    """A planner proposes assignments."""

    plan: Plan
