"""Values for operators: the scheduler's status, and the story of an action. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from callsheet.client.admin_predictions import ExpectedRun
from callsheet.client.words.actions import ActionKind
from callsheet.client.words.costs import Cost
from callsheet.client.words.jobs import JobStatus


class ActionState(Enum):
    """The states of an action."""

    UNSPECIFIED = "unspecified"
    """Not told, or a state newer than this client."""
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class WaitReason(Enum):
    """Why a queued action is not running."""

    UNSPECIFIED = "unspecified"
    """It is not waiting, or for a reason newer than this client."""
    NEXT_ROUND = "next_round"
    EARLIER_IN_SANDBOX = "earlier_in_sandbox"
    NO_SERVICE = "no_service"
    MANAGER_AWAY = "manager_away"
    RESOURCES = "resources"
    SLOTS = "slots"
    HELD_FOR_OLDER = "held_for_older"
    BACKOFF = "backoff"
    RECOVERY = "recovery"
    ADMISSION = "admission"
    QUOTA = "quota"
    OTHERS_FIRST = "others_first"
    WEIGHTS = "weights"


class WeightsStanding(Enum):
    """Whether an engine has weights that it may serve."""

    UNSPECIFIED = "unspecified"
    """It is no engine, or this is newer than this client."""
    INITIAL = "initial"
    """Those that it was started with, while nobody had published any."""
    PROVED = "proved"
    UPDATING = "updating"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """The weights of one engine.

    Attributes:
        standing: Whether it may serve them.
        version: Their policy version, as far as it is known.
        reason: Why it may not, or why its newest update failed; empty if it did not.
    """

    standing: WeightsStanding
    version: int
    reason: str = ""

    @property
    def may_serve(self) -> bool:
        """Whether the engine may serve them."""
        return self.standing in (WeightsStanding.INITIAL, WeightsStanding.PROVED)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Something a manager can do.

    Attributes:
        name: "sandbox", "test-suite", a model, an API.
        kinds: The kinds of action it serves.
        slots: The most attempts at once; None: no limit but the node's resources.
        reserved: Units of the node's resources it holds as long as it is registered.
        policy_version: For models: the policy version they serve.
        shared: Units of the node's resources that its manager shares among its attempts.
        weights: For engines: their weights; None for all else.
        problem: Why nothing can begin on it, as a sentence; empty if it can.
    """

    name: str
    kinds: tuple[ActionKind, ...]
    slots: int | None
    reserved: Mapping[str, int]
    policy_version: int
    shared: Mapping[str, int] = field(default_factory=dict)
    weights: EngineWeights | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """One manager.

    Attributes:
        manager_id: Its id.
        node_id: Its node.
        connected: Whether its stream is up.
        draining: Whether it is leaving.
        services: Its services.
        attempts: Attempts it runs.
        sandboxes: Sandboxes it holds.
        capabilities: The limits that it can and cannot enforce, as registered.
        leaving: Whether it is to leave: until then it takes only the actions of its sandboxes.
        leaves_by: When it leaves at the latest, in seconds since the epoch; None: once its last sandbox has ended.
        sandbox_memory_mib: MiB of its sandboxes: "demand", their limits; "booked", their share of the node;
            "held", what they hold between their actions, or their demand where that is not known.
        waiting_for_memory: Of its attempts, those that waited at it for memory at its last heartbeat.
    """

    manager_id: str
    node_id: str
    connected: bool
    draining: bool
    services: tuple[ServiceStatus, ...]
    attempts: int
    sandboxes: int
    capabilities: Mapping[str, str]
    leaving: bool = False
    leaves_by: float | None = None
    sandbox_memory_mib: Mapping[str, int] = field(default_factory=dict)
    waiting_for_memory: int = 0


@dataclass(frozen=True, slots=True)
class LostManager:
    """A manager that fell silent, or that another process took the place of, and has not come back.

    Attributes:
        manager_id: Its id.
        node_id: Its node; empty if it had not registered since the scheduler's start.
        lost_at: When it was given up, in seconds since the epoch.
        attempts: Attempts that it ran then.
        sandboxes: Sandboxes that it held then, which are lost.
    """

    manager_id: str
    node_id: str
    lost_at: float
    attempts: int
    sandboxes: int


@dataclass(frozen=True, slots=True)
class WantedUnits:
    """Wanted units of the managers of a role, by resource.

    Actions that wait for the manager of their sandbox are left out, as no other one can run them.

    Attributes:
        role: As it was announced to the scheduler, or the name of its managers' first service.
        managers: Managers that may be given work now.
        waiting: Actions, and trajectories that are not let begin, for which there is no room.
        held: Units that attempts run with and sandboxes keep.
        waiting_units: The fewest units for the waiting actions.
        useful_units: Further units that would shorten waiting and running actions.
    """

    role: str
    managers: int
    waiting: int
    held: Mapping[str, int]
    waiting_units: Mapping[str, int]
    useful_units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SandboxOwner:
    """A live sandbox with its owner."""

    job_id: str
    trajectory_id: str
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The work that dies with a manager if it leaves too early.

    Attributes:
        sandboxes: Its sandboxes, at most 1,000.
        sandbox_count: All of its sandboxes.
        attempts: Attempts that it runs.
    """

    sandboxes: tuple[SandboxOwner, ...]
    sandbox_count: int
    attempts: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node.

    Attributes:
        node_id: Its id.
        capacity: Units by resource.
        free: Free units by resource.
    """

    node_id: str
    capacity: Mapping[str, int]
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The whole scheduler.

    Attributes:
        epoch: Grows by one with every start.
        started_at: Its start.
        jobs: Open jobs.
        managers: Known managers.
        nodes: Known nodes.
        lost: Managers that were lost and have not come back, the newest last.
        wanted: Wanted units of each role of managers.
    """

    epoch: int
    started_at: float
    jobs: tuple[JobStatus, ...]
    managers: tuple[ManagerStatus, ...]
    nodes: tuple[NodeStatus, ...]
    lost: tuple[LostManager, ...] = ()
    wanted: tuple[WantedUnits, ...] = ()

    def shared_units(self, node_id: str, resource: str) -> int:
        """Units of a node that its managers share among their attempts; they are not among its free ones."""
        pools = (
            max((service.shared.get(resource, 0) for service in manager.services), default=0)
            for manager in self.managers
            if manager.node_id == node_id
        )
        return sum(pools)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is short on a node, in units."""

    resource: str
    needed: int
    free: int
    capacity: int
    node_id: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Something that holds units that a waiting action lacks.

    Of another job than its own a client with a job's token learns the node, the units and the time alone.

    Attributes:
        job_id: The job it belongs to; empty if that is another job, which the client may not see.
        action_id: The action that runs with them; empty where a trajectory holds them between its actions.
        trajectory_id: The trajectory; empty if it has none.
        node_id: The node.
        units: Its held units, by resource; "slots" are those of a service.
        held_s: For how long, in seconds.
        sessions: Client sessions that hold its job now; 0: its client is away.
        expires_in_s: Seconds until its job expires; None while it cannot.
    """

    job_id: str
    action_id: str
    trajectory_id: str
    node_id: str
    units: Mapping[str, float]
    held_s: float
    sessions: int
    expires_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One event in an action's life.

    Attributes:
        at: When.
        event: The event, as a sentence.
    """

    at: float
    event: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an action is where it is.

    Attributes:
        job_id: Its job.
        action_id: The action.
        kind: Its kind; None for one newer than this client.
        state: Its state.
        wait_reason: Why it waits.
        explanation: The same as a sentence, with numbers.
        shortages: The missing units, on the node that comes closest.
        story: The events so far, in order.
        expected: Its expected needs; None once it has its outcome.
        holders: The holders of the missing units, longest first.
        job_closed: It has its outcome and its job was closed since; this is the summary that was kept.
    """

    job_id: str
    action_id: str
    kind: ActionKind | None
    state: ActionState
    wait_reason: WaitReason
    explanation: str
    shortages: tuple[Shortage, ...]
    story: tuple[StoryEvent, ...]
    expected: ExpectedRun | None = None
    holders: tuple[Holder, ...] = ()
    job_closed: bool = False


@dataclass(frozen=True, slots=True)
class ClosedJob:
    """What is kept of a job that was closed. Times are in seconds since the epoch.

    Attributes:
        job_id: Its id.
        opened: When it was opened.
        closed: When it was closed.
        reason: Why it was closed, as a sentence.
        cost: What all under it cost.
        reopened: A later job has its id: the histories of trajectories and actions are those of the newest.
    """

    job_id: str
    opened: float
    closed: float
    reason: str
    cost: Cost
    reopened: bool = False


@dataclass(frozen=True, slots=True)
class OpenActions:
    """Actions of a job that have no outcome.

    Attributes:
        actions: Why each of the oldest is where it is; of the story there is the first event.
        open: How many there are in all.
    """

    actions: tuple[Explanation, ...]
    open: int
