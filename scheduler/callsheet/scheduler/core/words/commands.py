"""Commands of the core to the shell.

The shell carries commands out in the order they are returned. `Persist` goes to the journal. A command whose class sets
`after_commit` waits until every record before it is committed. So does the dispatch of an action that may begin only
once. All others are carried out at once if the scheduler has lately proved that it leads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.events import AttemptResult, ReplyTo
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionKind,
    ActionRequest,
    ActionState,
    Opened,
    TimeoutKind,
    Token,
)
from callsheet.scheduler.core.words.peers import BatchTaker, ManagerSession, Usage, Watcher
from callsheet.scheduler.core.words.plan import GrantPrediction
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import SandboxRef


class CoreCommand:
    """A command of the core to the shell.

    Attributes:
        after_commit: Whether the command waits until every record before it is committed.
    """

    __slots__ = ()
    after_commit: ClassVar[bool] = False


@dataclass(slots=True)
class ManagerCommand(CoreCommand):
    """For a manager; without a `session` if its stream is down, as its next registration settles it."""

    session: ManagerSession | None


@dataclass(slots=True)
class Persist(CoreCommand):
    """Remember a change."""

    record: Record


@dataclass(slots=True)
class Accept(CoreCommand):
    """A request was carried out.

    Attributes:
        patient: What its client waits for is not this but an outcome.
        opened: What it found, if it opened something.
    """

    after_commit: ClassVar[bool] = True
    reply_to: ReplyTo
    patient: bool = False
    opened: Opened | None = None


@dataclass(slots=True)
class Refuse(CoreCommand):
    """A request broke a rule."""

    reply_to: ReplyTo
    refusal: RefusedError


@dataclass(slots=True)
class Deliver(CoreCommand):
    """Send an outcome, as `OutcomeEncoder` encoded it, to all who wait for it."""

    after_commit: ClassVar[bool] = True
    watchers: tuple[Watcher, ...]
    key: ActionKey
    outcome: bytes


@dataclass(slots=True)
class DeliverStored(CoreCommand):
    """Send the outcome that the journal has."""

    after_commit: ClassVar[bool] = True
    watcher: Watcher
    key: ActionKey


@dataclass(slots=True)
class GiveBatch(CoreCommand):
    """Tell a trainer that a batch is leased to it."""

    after_commit: ClassVar[bool] = True
    taker: BatchTaker
    job_id: str
    batch_id: str


@dataclass(slots=True)
class AcceptManager(ManagerCommand):
    """Tell a manager that it is registered, and which cores its pool has."""

    shared_cores: tuple[int, ...] = ()


@dataclass(slots=True)
class RefuseManager(ManagerCommand):
    """End a manager's session: its registration broke a rule, or another session took its place."""

    refusal: RefusedError


@dataclass(slots=True)
class Dispatch(ManagerCommand):
    """Run an attempt."""

    request: ActionRequest
    token: Token
    attempt: int
    service: str
    resources: dict[str, int]
    cores: tuple[int, ...]
    start_to_close: float
    sandbox_id: str
    prediction: GrantPrediction | None = None


@dataclass(slots=True)
class ResizeAttempt(ManagerCommand):
    """Change what an attempt may use."""

    token: Token
    resources: dict[str, int]
    cores: tuple[int, ...]


@dataclass(slots=True)
class CancelAttempt(ManagerCommand):
    """Stop an attempt."""

    token: Token
    reason: str


@dataclass(slots=True)
class AcknowledgeEnd(ManagerCommand):
    """A manager may forget an end.

    Attributes:
        patient: Its manager has time, and room to keep the end for a while.
    """

    after_commit: ClassVar[bool] = True
    token: Token
    patient: bool = False


@dataclass(slots=True)
class ReleaseSandbox(ManagerCommand):
    """Destroy a sandbox."""

    sandbox: SandboxRef


@dataclass(slots=True)
class DrainManager(ManagerCommand):
    """Ask a manager to take no new attempts."""


@dataclass(slots=True)
class ReleasePayloads(CoreCommand):
    """Let go of stored payloads that a job needs no longer: those of weights that newer ones took the place of."""

    after_commit: ClassVar[bool] = True
    job_id: str
    payloads: frozenset[str]


@dataclass(slots=True)
class UpdateWeights(ManagerCommand):
    """Have an engine take new weights and prove them.

    Attributes:
        update: This command's own token.
        rollout: What it is for.
        plan: What was published, encoded; empty where it is to go back to its first weights.
        reference: What the first engine that was proved answered to the canary, encoded; empty if none was yet.
        rank: Of the engine's first worker in the trainer's group; 0 if there is none.
    """

    update: Token
    rollout: Token
    service: str
    version: int
    plan: bytes
    reference: bytes
    rank: int


@dataclass(slots=True)
class TellDemand(ManagerCommand):
    """Tell a manager what is asked for of a service whose instances come and go.

    Attributes:
        waiting: Actions that wait here.
        coming: Further ones that are expected.
    """

    service: str
    waiting: int
    coming: float


@dataclass(slots=True)
class Expiry:
    """A deadline ran out before the action could finish."""

    timeout: TimeoutKind


@dataclass(slots=True)
class Cancellation:
    """The action was cancelled; `partial` is what it had produced."""

    reason: str
    partial: bytes | None = None


OutcomeResult = AttemptResult | Expiry | Cancellation


@dataclass(slots=True)
class OutcomeFacts:
    """All there is to say about a finished action. Times are seconds since the epoch; 0 for a step never reached.

    Attributes:
        waited_s: Seconds that it waited after its dispatch, by cause.
        cost: What all of its attempts cost.
        node_id: The node of its manager; empty if there was none, or it is not known.
    """

    key: ActionKey
    kind: ActionKind
    state: ActionState
    result: OutcomeResult
    usage: Usage | None
    attempts: int
    manager_id: str
    submitted: float
    first_dispatched: float
    dispatched: float
    started: float
    ended: float
    queue_s: float
    execution_s: float
    start_wait_s: float = 0.0
    waited_s: dict[str, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    node_id: str = ""

    @property
    def overhead_s(self) -> float:
        """All that is no queue, no wait and no execution: transport, dispatch and journal."""
        told_s = self.queue_s + self.execution_s + sum(self.waited_s.values())
        return max(self.ended - self.submitted - told_s, 0.0)
