"""Values of admin_service.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from callsheet.v1 import action_values, admin_service_pb2, common_values, job_values, manager_service_values
from callsheet.v1.values import SchedulerMethods, mapping, seconds


class ActionState(Enum):
    """The states of an action."""

    UNSPECIFIED = "unspecified"
    """Not a state. Also a value that is newer than this code."""
    QUEUED = "queued"
    """Waiting to be dispatched."""
    DISPATCHED = "dispatched"
    """Sent to a manager."""
    RUNNING = "running"
    """Started by the manager."""
    SUCCEEDED = "succeeded"
    """Ended well."""
    FAILED = "failed"
    """Ended in a failure."""
    CANCELLED = "cancelled"
    """Ended by a cancel."""
    EXPIRED = "expired"
    """Ended by a deadline."""


ACTION_STATE: Final[Mapping[int, ActionState]] = {
    0: ActionState.UNSPECIFIED,
    1: ActionState.QUEUED,
    2: ActionState.DISPATCHED,
    3: ActionState.RUNNING,
    4: ActionState.SUCCEEDED,
    5: ActionState.FAILED,
    6: ActionState.CANCELLED,
    7: ActionState.EXPIRED,
}


class WaitReason(Enum):
    """The reason why a queued action is not running."""

    UNSPECIFIED = "unspecified"
    """It is not waiting. Also a value that is newer than this code."""
    NEXT_ROUND = "next_round"
    """The next planning round takes it."""
    EARLIER_IN_SANDBOX = "earlier_in_sandbox"
    """An earlier action of its trajectory's sandbox has not ended."""
    NO_SERVICE = "no_service"
    """No registered manager serves it."""
    MANAGER_AWAY = "manager_away"
    """The manager that holds its sandbox is away."""
    RESOURCES = "resources"
    """Not enough free units."""
    SLOTS = "slots"
    """All slots of the service are taken."""
    HELD_FOR_OLDER = "held_for_older"
    """Free units are kept for an older action that needs more of them."""
    BACKOFF = "backoff"
    """A failed attempt's backoff has not run out."""
    RECOVERY = "recovery"
    """Its attempt before the scheduler's restart may still be running."""
    ADMISSION = "admission"
    """Its trajectory has not been let begin yet."""
    QUOTA = "quota"
    """A quota has not enough units yet; time brings them."""
    OTHERS_FIRST = "others_first"
    """It would fit, but the next planning round gives the capacity to others, or lets it wait for a better place."""
    WEIGHTS = "weights"
    """No engine that serves it has weights that are proved."""


WAIT_REASON: Final[Mapping[int, WaitReason]] = {
    0: WaitReason.UNSPECIFIED,
    1: WaitReason.NEXT_ROUND,
    2: WaitReason.EARLIER_IN_SANDBOX,
    3: WaitReason.NO_SERVICE,
    4: WaitReason.MANAGER_AWAY,
    5: WaitReason.RESOURCES,
    6: WaitReason.SLOTS,
    7: WaitReason.HELD_FOR_OLDER,
    8: WaitReason.BACKOFF,
    9: WaitReason.RECOVERY,
    10: WaitReason.ADMISSION,
    11: WaitReason.QUOTA,
    12: WaitReason.OTHERS_FIRST,
    13: WaitReason.WEIGHTS,
}


@dataclass(frozen=True, slots=True)
class SchedulerStatus(SchedulerMethods):
    """The whole scheduler.

    Attributes:
        epoch: Grows by one with every start.
        started_at: Its start.
        jobs: Open jobs.
        managers: Known managers.
        nodes: Known nodes.
        lost: Managers that were lost and have not come back, at most the 256 newest.
        wanted: Wanted units of each role of managers.
    """

    epoch: int
    started_at: float
    jobs: tuple[job_values.JobStatus, ...]
    managers: tuple[ManagerStatus, ...]
    nodes: tuple[NodeStatus, ...]
    lost: tuple[LostManager, ...] = ()
    wanted: tuple[WantedUnits, ...] = ()

    @classmethod
    def from_message(cls, message: admin_service_pb2.GetStatusResponse) -> Self:
        """Returns the value of a message."""
        return cls(
            message.epoch,
            seconds(message.started),
            tuple(map(job_values.JobStatus.from_message, message.jobs)),
            tuple(map(ManagerStatus.from_message, message.managers)),
            tuple(map(NodeStatus.from_message, message.nodes)),
            tuple(map(LostManager.from_message, message.lost)),
            tuple(map(WantedUnits.from_message, message.wanted)),
        )


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
        leaving: Whether it is to leave: until then it takes only the actions of its sandboxes. `draining` comes with
            its end.
        leaves_by: The latest time when it leaves; None: once its last sandbox has ended.
        sandbox_memory_mib: MiB of its sandboxes: "demand", their limits; "booked", their share of the node; "held", the
            memory that they hold between their actions, or their demand if that is not known.
        waiting_for_memory: Of its attempts, those that waited at it for memory at its last heartbeat.
    """

    manager_id: str
    node_id: str
    connected: bool
    draining: bool
    services: tuple[manager_service_values.ServiceStatus, ...]
    attempts: int
    sandboxes: int
    capabilities: Mapping[str, str]
    leaving: bool = False
    leaves_by: float | None = None
    sandbox_memory_mib: Mapping[str, int] = field(default_factory=dict)
    waiting_for_memory: int = 0

    @classmethod
    def from_message(cls, message: admin_service_pb2.ManagerStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.manager_id,
            message.node_id,
            message.connected,
            message.draining,
            tuple(map(manager_service_values.ServiceStatus.from_message, message.services)),
            message.attempts,
            message.sandboxes,
            mapping(message.capabilities),
            message.leaving,
            seconds(message.leaves_by) if message.HasField("leaves_by") else None,
            mapping(message.sandbox_memory_mib),
            message.waiting_for_memory,
        )


@dataclass(frozen=True, slots=True)
class LostManager:
    """A manager that fell silent, or that another process took the place of, and has not come back.

    Attributes:
        manager_id: Its id.
        node_id: Its node; empty if it had not registered since the scheduler's start.
        lost_at: The time when it was given up.
        attempts: Attempts that it ran then.
        sandboxes: Sandboxes that it held then, which are lost.
    """

    manager_id: str
    node_id: str
    lost_at: float
    attempts: int
    sandboxes: int

    @classmethod
    def from_message(cls, message: admin_service_pb2.LostManager) -> Self:
        """Returns the value of a message."""
        return cls(
            message.manager_id,
            message.node_id,
            seconds(message.time),
            message.attempts,
            message.sandboxes,
        )


@dataclass(frozen=True, slots=True)
class WantedUnits:
    """Wanted units of the managers of a role, by resource.

    Actions that wait for the manager of their sandbox are left out, because no other manager can run them.

    Attributes:
        role: As it was announced to the scheduler, or the name of its managers' first service.
        managers: Managers that may be given work now.
        waiting: Actions, and trajectories that may not begin, that no node has capacity for.
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

    @classmethod
    def from_message(cls, message: admin_service_pb2.WantedUnits) -> Self:
        """Returns the value of a message."""
        return cls(
            message.role,
            message.managers,
            message.waiting,
            mapping(message.held),
            mapping(message.waiting_units),
            mapping(message.useful_units),
        )


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

    @classmethod
    def from_message(cls, message: admin_service_pb2.NodeStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.node_id,
            mapping(message.capacity),
            mapping(message.free),
        )


@dataclass(frozen=True, slots=True)
class OpenActions:
    """Actions of a job that have no outcome.

    Attributes:
        actions: The oldest actions, each as in Explain, without shortages, holders and expected needs. The story has
            the first event only.
        open: Number of all open actions of the job.
    """

    actions: tuple[Explanation, ...]
    open: int

    @classmethod
    def from_message(cls, message: admin_service_pb2.ListActionsResponse) -> Self:
        """Returns the value of a message."""
        return cls(
            tuple(map(Explanation.from_message, message.actions)),
            message.open,
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of an action, and the reason for it.

    Attributes:
        job_id: The job the action belongs to.
        action_id: Unique within the job for the job's life; the client's idempotency key.
        kind: Its kind; None for one that is newer than this code.
        state: Its state.
        wait_reason: The reason why it waits.
        explanation: The same as a sentence, with numbers.
        shortages: The missing units on the node that comes closest, for WAIT_REASON_RESOURCES, WAIT_REASON_QUOTA, and
            for WAIT_REASON_ADMISSION if a sandbox finds no capacity. Empty if units are free but do not lie together.
        story: The events so far, in order.
        expected: Its expected needs; None once it has its outcome.
        holders: The holders of the missing units, longest first, at most 20.
        job_closed: Whether it has its outcome and its job was closed since; this is the summary that was kept.
        trajectory_id: Its trajectory; empty if it has none, or if it is kept no more.
    """

    job_id: str
    action_id: str
    kind: action_values.ActionKind | None
    state: ActionState
    wait_reason: WaitReason
    explanation: str
    shortages: tuple[Shortage, ...]
    story: tuple[StoryEvent, ...]
    expected: ExpectedRun | None = None
    holders: tuple[Holder, ...] = ()
    job_closed: bool = False
    trajectory_id: str = ""

    @classmethod
    def from_message(cls, message: admin_service_pb2.ExplainResponse) -> Self:
        """Returns the value of a message."""
        return cls(
            message.key.job_id,
            message.key.action_id,
            action_values.ACTION_KIND.get(message.kind),
            ACTION_STATE.get(message.state, ActionState.UNSPECIFIED),
            WAIT_REASON.get(message.wait_reason, WaitReason.UNSPECIFIED),
            message.explanation,
            tuple(map(Shortage.from_message, message.shortages)),
            tuple(map(StoryEvent.from_message, message.story)),
            ExpectedRun.from_message(message.expected) if message.HasField("expected") else None,
            tuple(map(Holder.from_message, message.holders)),
            message.job_closed,
            message.trajectory_id,
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of units that a waiting action lacks.

    Of another job than its own a caller with a job's token sees only the node, the units and the time.

    Attributes:
        job_id: The job it belongs to; empty if that is another job, which the caller may not see.
        action_id: The action that runs with them; empty if a trajectory holds them between its actions.
        trajectory_id: The trajectory; empty if it has none.
        node_id: The node.
        units: Its held units, by resource; "slots" are those of a service.
        held_s: Seconds since it began to hold them.
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

    @classmethod
    def from_message(cls, message: admin_service_pb2.Holder) -> Self:
        """Returns the value of a message."""
        return cls(
            message.job_id,
            message.action_id,
            message.trajectory_id,
            message.node_id,
            mapping(message.units),
            message.held_s,
            message.sessions,
            message.expires_in_s if message.HasField("expires_in_s") else None,
        )


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """The expected needs of an action, at its fewest units.

    Attributes:
        mean_s: Mean execution time in seconds, bounded by its timeout.
        low_s: One in ten is shorter.
        high_s: One in ten is longer.
        use: CPU cores used on average while it runs.
        peak_memory_mb: Memory that one in twenty exceeds, in megabytes.
        amdahl_fraction: Share of its work that more units divide among them.
        observations: Runs of the same job, kind, label and task behind this, older ones counted less; the rest is from
            its kin.
    """

    mean_s: float
    low_s: float
    high_s: float
    use: float
    peak_memory_mb: float
    amdahl_fraction: float
    observations: float

    @classmethod
    def from_message(cls, message: admin_service_pb2.ExpectedRun) -> Self:
        """Returns the value of a message."""
        return cls(
            message.mean_s,
            message.low_s,
            message.high_s,
            message.use,
            message.peak_memory_mb,
            message.amdahl_fraction,
            message.observations,
        )


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is short on a node.

    Attributes:
        resource: The resource.
        needed: Units needed.
        free: Units free.
        capacity: Units the node has.
        node_id: The node.
    """

    resource: str
    needed: int
    free: int
    capacity: int
    node_id: str

    @classmethod
    def from_message(cls, message: admin_service_pb2.ResourceShortage) -> Self:
        """Returns the value of a message."""
        return cls(
            message.resource,
            message.needed,
            message.free,
            message.capacity,
            message.node_id,
        )


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One event in an action's life.

    Attributes:
        at: The time of the event.
        event: The event, as a sentence.
    """

    at: float
    event: str

    @classmethod
    def from_message(cls, message: admin_service_pb2.StoryEvent) -> Self:
        """Returns the value of a message."""
        return cls(
            seconds(message.time),
            message.event,
        )


@dataclass(frozen=True, slots=True)
class ClosedJob:
    """The record of a job that was closed.

    Attributes:
        job_id: Its id.
        opened: The time when it was opened.
        closed: The time when it was closed.
        reason: The reason why it was closed, as a sentence.
        cost: The cost of all its work. Attempts that outlive their job are added when they end.
        reopened: Whether a later job has its id: the histories of trajectories and actions are those of the newest.
    """

    job_id: str
    opened: float
    closed: float
    reason: str
    cost: common_values.Cost
    reopened: bool = False

    @classmethod
    def from_message(cls, message: admin_service_pb2.ClosedJob) -> Self:
        """Returns the value of a message."""
        return cls(
            message.job_id,
            seconds(message.opened),
            seconds(message.closed),
            message.reason,
            common_values.Cost.from_message(message.cost),
            message.reopened,
        )


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The work that dies with a manager if the manager leaves too early.

    Attributes:
        sandboxes: Its sandboxes, at most 1,000.
        sandbox_count: All of its sandboxes.
        attempts: Attempts that it runs.
    """

    sandboxes: tuple[manager_service_values.SandboxOwner, ...]
    sandbox_count: int
    attempts: int

    @classmethod
    def from_message(cls, message: admin_service_pb2.DrainManagerResponse) -> Self:
        """Returns the value of a message."""
        return cls(
            tuple(map(manager_service_values.SandboxOwner.from_message, message.sandboxes)),
            message.sandbox_count,
            message.attempts,
        )


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The effect of more nodes in a pool.

    Attributes:
        pool: The pool's name.
        nodes: Its nodes now.
        before: The prospects with these nodes.
        after: The prospects with those added.
        summary: The comparison as a sentence, with numbers.
    """

    pool: str
    nodes: int
    before: Outlook
    after: Outlook
    summary: str

    @classmethod
    def from_message(cls, message: admin_service_pb2.WhatIfResponse) -> Self:
        """Returns the value of a message."""
        return cls(
            message.pool,
            message.nodes,
            Outlook.from_message(message.before),
            Outlook.from_message(message.after),
            message.summary,
        )


@dataclass(frozen=True, slots=True)
class Outlook:
    """The prospects of actions if nothing new arrives.

    Attributes:
        mean_act_s: Mean predicted completion time in seconds of all actions below, by weight: from now for those that
            wait, as a whole for those that share cores.
        classes: Actions that wait and are free to go to any node, by class.
        start_now: Actions that start in the next planning round.
        shared: Commands that share the cores of their sandboxes' nodes in the pool asked for.
    """

    mean_act_s: float
    classes: tuple[ClassOutlook, ...]
    start_now: int
    shared: SharedCores

    @classmethod
    def from_message(cls, message: admin_service_pb2.Outlook) -> Self:
        """Returns the value of a message."""
        return cls(
            message.mean_act_s,
            tuple(map(ClassOutlook.from_message, message.classes)),
            message.start_now,
            SharedCores.from_message(message.shared),
        )


@dataclass(frozen=True, slots=True)
class ClassOutlook:
    """The prospects of a class of waiting actions.

    Attributes:
        name: The class, in words.
        waiting: Members.
        mean_wait_s: Mean seconds until they start.
        mean_end_s: Mean seconds until they end.
        stuck: Members that no node could ever run.
        waited_s: Seconds that its members have waited so far, on average.
    """

    name: str
    waiting: int
    mean_wait_s: float
    mean_end_s: float
    stuck: int
    waited_s: float = 0.0

    @classmethod
    def from_message(cls, message: admin_service_pb2.ClassOutlook) -> Self:
        """Returns the value of a message."""
        return cls(
            message.name,
            message.waiting,
            message.mean_wait_s,
            message.mean_end_s,
            message.stuck,
            message.waited_s,
        )


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Commands that share the cores of their sandboxes' nodes, in one pool.

    Attributes:
        cores: Cores of the pool.
        running: Commands that run.
        use: Cores they would use if there were enough.
        mean_act_s: Their mean expected completion time in seconds with the present cores, their execution so far
            included.
    """

    cores: int
    running: int
    use: float
    mean_act_s: float

    @classmethod
    def from_message(cls, message: admin_service_pb2.SharedCores) -> Self:
        """Returns the value of a message."""
        return cls(
            message.cores,
            message.running,
            message.use,
            message.mean_act_s,
        )
