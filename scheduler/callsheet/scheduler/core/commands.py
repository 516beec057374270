"""What the core wants done.

The shell carries commands out in the order they are returned. `Persist` goes to the journal. A command whose class says
`after_commit` waits until every record before it is committed; all others are carried out at once. One
for a manager whose stream is down has no `session`: the manager's next registration settles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from callsheet.scheduler.core.events import AttemptResult, ReplyTo
from callsheet.scheduler.core.model import (
    ActionKey,
    ActionRequest,
    ActionState,
    Opened,
    RefusedError,
    TimeoutKind,
    Token,
)
from callsheet.scheduler.core.peers import ManagerSession, Usage, Watcher
from callsheet.scheduler.core.plan import GrantPrediction
from callsheet.scheduler.core.records import Record
from callsheet.scheduler.core.registration import SandboxRef


@dataclass(slots=True)
class Persist:
    """Remember a change."""

    after_commit: ClassVar[bool] = False
    record: Record


@dataclass(slots=True)
class Accept:
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
class Refuse:
    """A request broke a rule."""

    after_commit: ClassVar[bool] = False
    reply_to: ReplyTo
    refusal: RefusedError


@dataclass(slots=True)
class Deliver:
    """Send an outcome, as `OutcomeEncoder` encoded it, to all who wait for it."""

    after_commit: ClassVar[bool] = True
    watchers: tuple[Watcher, ...]
    key: ActionKey
    outcome: bytes


@dataclass(slots=True)
class DeliverStored:
    """Send the outcome that the journal has."""

    after_commit: ClassVar[bool] = True
    watcher: Watcher
    key: ActionKey


@dataclass(slots=True)
class AcceptManager:
    """Tell a manager that it is registered, and which cores its pool has."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    manager_id: str
    shared_cores: tuple[int, ...] = ()


@dataclass(slots=True)
class RefuseManager:
    """End a manager's session: its registration broke a rule, or another session took its place."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    refusal: RefusedError


@dataclass(slots=True)
class Dispatch:
    """Run an attempt."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
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
class ResizeAttempt:
    """Change what an attempt may use."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    token: Token
    resources: dict[str, int]
    cores: tuple[int, ...]


@dataclass(slots=True)
class PauseAttempt:
    """Pause an attempt, or resume it."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    token: Token
    paused: bool


@dataclass(slots=True)
class CancelAttempt:
    """Stop an attempt."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    token: Token
    reason: str


@dataclass(slots=True)
class AcknowledgeEnd:
    """A manager may forget an end."""

    after_commit: ClassVar[bool] = True
    session: ManagerSession | None
    token: Token


@dataclass(slots=True)
class ReleaseSandbox:
    """Destroy a sandbox."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None
    sandbox: SandboxRef


@dataclass(slots=True)
class DrainManager:
    """Ask a manager to take no new attempts."""

    after_commit: ClassVar[bool] = False
    session: ManagerSession | None


Command = (
    Persist
    | Accept
    | Refuse
    | Deliver
    | DeliverStored
    | AcceptManager
    | RefuseManager
    | Dispatch
    | ResizeAttempt
    | PauseAttempt
    | CancelAttempt
    | AcknowledgeEnd
    | ReleaseSandbox
    | DrainManager
)


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
    """All there is to say about a finished action. Times are seconds since the epoch; 0 for a step never reached."""

    key: ActionKey
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
    paused_s: float
    start_wait_s: float = 0.0
