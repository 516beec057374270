"""Entities of the core: jobs, trajectories, actions, attempts and managers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from callsheet.scheduler.core.state.buffer import Buffer
from callsheet.scheduler.core.state.closed_trajectories import ClosedTogether, ClosedTrajectory
from callsheet.scheduler.core.state.forgotten_ids import ForgottenWork
from callsheet.scheduler.core.state.held_memory import booked_mib
from callsheet.scheduler.core.state.lease import Lease
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.services import Service, Stranger, pool_of
from callsheet.scheduler.core.state.transitions import SUBMITTED, Change, ImpossibleChangeError
from callsheet.scheduler.core.words.commands import OutcomeResult
from callsheet.scheduler.core.words.costs import Account, Cost
from callsheet.scheduler.core.words.model import (
    MEMORY,
    ActionKey,
    ActionRequest,
    ActionState,
    JobRequest,
    OnInfra,
    Token,
    TrajectoryKey,
    TrajectoryRequest,
)
from callsheet.scheduler.core.words.peers import ManagerSession, Usage, Watcher
from callsheet.scheduler.core.words.plan import GrantPrediction
from callsheet.scheduler.core.words.registration import SandboxRef

# Less than every token.
FIRST_TOKEN = Token(0, 0)
# Plans may change the cores of an attempt as often as commands come to its node.
MAX_STORY = 256
# Beyond it, to look at all that are there is no slower than to look at what left.
MOST_LEFT = 65_536

# How many losses are replaced where the clients see to that.
NO_BUDGET: Final = 2**31 - 1


@dataclass(slots=True, eq=False)
class Manager:
    """A registered manager.

    Attributes:
        session: Where its commands go; None while its stream is down.
        draining: It takes no attempts any more: it was told to leave, or leaves by itself.
        leaves_by: When an operator has it leave at the latest; infinite: once its last sandbox ends. Until then it
            takes what its sandboxes need, and nothing else. None if it is to stay.
        reconciled: Everything it kept over a broken stream has arrived, so new attempts may be sent.
        unlisted: Attempts it did not list as running when it registered; decided at its first heartbeat.
        strangers: What is booked for attempts that it runs and that are no action's any more, or not yet.
        listed_sandboxes: Sandboxes it had when it registered; those nobody owns are released at the first heartbeat.
        by_need: It told what a sandbox holds, so it gives the rest of a demand only while something runs in it.
        demand_told_at: When it was told last what is asked for of its services.
        left: Where attempts that leave `attempts` are noted, for whoever put the list here and keeps a copy of them;
            None if nobody does, or if there were too many to note.
    """

    manager_id: str
    incarnation: str
    node: Node
    services: dict[str, Service]
    session: ManagerSession | None
    last_seen: float
    capabilities: Mapping[str, str]
    draining: bool = False
    leaves_by: float | None = None
    reconciled: bool = False
    unlisted: set[Token] = field(default_factory=set)
    strangers: dict[Token, Stranger] = field(default_factory=dict)
    listed_sandboxes: tuple[SandboxRef, ...] = ()
    attempts: dict[Token, Attempt] = field(default_factory=dict)
    sandboxes: dict[TrajectoryKey, Trajectory] = field(default_factory=dict)
    by_need: bool = False
    demand_told_at: float = -inf
    left: list[Token] | None = None

    def drop(self, token: Token) -> bool:
        """Takes an attempt out of its attempts; whether it was among them."""
        if self.attempts.pop(token, None) is None:
            return False
        if self.left is not None:
            self.left.append(token)
            if len(self.left) > MOST_LEFT:
                self.left = None
        return True

    @property
    def sandbox_memory_mib(self) -> dict[str, int]:
        """Memory that its sandboxes may have, book and hold between actions; if not reported, their demand."""
        told = [
            (each.held.get(MEMORY, 0), each.booked.get(MEMORY, 0), each.held_mib) for each in self.sandboxes.values()
        ]
        return {
            "demand": sum(demand for demand, _, _ in told),
            "booked": sum(booked for _, booked, _ in told),
            "held": sum(held or demand for demand, _, held in told),
        }

    @property
    def waiting_for_memory(self) -> int:
        """Its attempts that waited for memory at its last heartbeat."""
        return sum(service.waiting_for_memory for service in self.services.values())

    @property
    def pool(self) -> dict[str, int]:
        """The pool that its services share; see `pool_of`."""
        return pool_of(service.description for service in self.services.values())

    @property
    def accepting(self) -> bool:
        """True if anything may be sent to it now."""
        return self.leaves_by is None and self.serves_own

    @property
    def serves_own(self) -> bool:
        """True if actions of its own sandboxes may be sent to it now."""
        return self.session is not None and self.reconciled and not self.draining

    def takes(self, pinned: object) -> bool:
        """Returns whether an action may be sent to it now; a pinned one needs one of its sandboxes."""
        return self.serves_own if pinned else self.accepting


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at an action, from its dispatch until the manager says it ended or is lost.

    It can outlive its action: when the action got its outcome another way the attempt still holds its units.

    Attributes:
        granted: The units of its grant, as its manager knows them.
        units: Those among them that are booked on the node for this attempt; what is shared or consumed is not.
        cores: Core ids behind the booked ones.
        prediction: What the planner expected of it, if anything.
        clock_s: Its execution clock at `clock_at`, as its manager told it; `clock_at` is 0 if it never did.
        narrowed_from: Cores it had before plans took some for others; 0 while it has them all.
        lent_cores: Core ids that its trajectory holds and lends it.
        manager: None after a restart, until the manager registers again.
        kv_tokens: What is booked for it of an engine's KV cache.
        batch: Attempts that its service ran when it was dispatched, itself included.
        of_unknown_process: It may have been sent to an earlier process of its manager; see `UNKNOWN`.
    """

    token: Token
    action: Action
    manager_id: str
    manager: Manager | None
    service: str
    number: int
    dispatched_at: float
    granted: dict[str, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    narrowed_from: int = 0
    lent_cores: tuple[int, ...] = ()
    started_at: float = 0.0
    last_progress: float = 0.0
    clock_s: float = 0.0
    clock_at: float = 0.0
    prediction: GrantPrediction | None = None
    cancel_sent: bool = False
    kv_tokens: int = 0
    batch: int = 0
    of_unknown_process: bool = False


@dataclass(slots=True)
class LastAttempt:
    """How the attempt ended that decides about its action.

    Attributes:
        started: Whether it may have begun.
        usage: What it used, as far as its manager told.
        execution_s: Seconds that its manager spent executing it, as far as that was told.
        waited_s: Seconds that it waited at its manager, by cause; None if that told no end.
    """

    attempt: Attempt
    started: bool = True
    usage: Usage | None = None
    execution_s: float = 0.0
    waited_s: Mapping[str, float] | None = None


@dataclass(slots=True, eq=False)
class Action:
    """An action that has no outcome yet.

    Attributes:
        arrival: Order of arrival; kept over retries, so a retried action does not lose its place.
        awaits_role: It was accepted for a manager that was announced and had not registered yet.
        ready_ticket: Its place in the ready queue; 0 while it waits for its turn in the sandbox or for a backoff.
        attempt: The current attempt, while it is dispatched.
        start_wait_s: The part of `queue_s` that its trajectory waited for admission.
        failed_on: The manager of the last attempt, if it failed; another one is preferred.
        verdict: The outcome already decided, while its attempt is still being stopped.
        detached: An attempt at it was given up and may run still.
        away_s: Seconds since its submit in which no scheduler ran; its deadlines stand still meanwhile.
        no_deadline_before: After a restart its deadlines wait until managers had the time to come back.
        cost: What its attempts cost that have ended since the scheduler's start; None if none has.
    """

    request: ActionRequest
    job: Job
    trajectory: Trajectory | None
    arrival: int
    submitted_at: float
    queued_since: float
    state: ActionState = SUBMITTED.target
    awaits_role: bool = False
    ready_ticket: int = 0
    attempts: int = 0
    attempt: Attempt | None = None
    first_dispatched_at: float = 0.0
    queue_s: float = 0.0
    start_wait_s: float = 0.0
    backoff_until: float = 0.0
    cancel_reason: str | None = None
    failed_on: str = ""
    verdict: OutcomeResult | None = None
    detached: bool = False
    away_s: float = 0.0
    no_deadline_before: float = 0.0
    cost: Cost | None = None
    watchers: list[Watcher] = field(default_factory=list)
    story: list[tuple[float, str]] = field(default_factory=list)

    @property
    def key(self) -> ActionKey:
        """Its key."""
        return self.request.key

    def change(self, by: Change) -> None:
        """Changes its state; its job counts its actions by their states.

        Raises:
            ImpossibleChangeError: The table has no such change from its state. Nothing is changed then.
        """
        if self.state not in by.sources:
            story = "; ".join(event for _, event in self.story)
            raise ImpossibleChangeError(f"{self.key} is {self.state.value} and cannot be {by.name}: {story}")
        counts = self.job.state_counts
        counts[self.state] -= 1
        counts[by.target] = counts.get(by.target, 0) + 1
        self.state = by.target

    def deadline(self, timeout: float) -> float:
        """When a time runs out that counts from its submit."""
        return max(self.submitted_at + self.away_s + timeout, self.no_deadline_before)

    def tell(self, now: float, event: str) -> None:
        """Adds to its story; of a long one the first event and the last ones are kept."""
        self.story.append((now, event))
        if len(self.story) > MAX_STORY:
            del self.story[1]


@dataclass(slots=True)
class FinishedAction:
    """Rest of an action that has its outcome: enough to recognise a repeated submit.

    Attributes:
        finished_at: When it got its outcome, in seconds since the epoch; later by what no scheduler ran since.
        size: Bytes of its outcome, and of what is kept of its spec.
        tells_of: The trajectory that it may be the last to tell of that it began; empty where something else does.
    """

    body_hash: bytes
    state: ActionState
    finished_at: float
    size: int
    tells_of: str = ""


@dataclass(slots=True, eq=False)
class Trajectory:
    """An open trajectory.

    Attributes:
        sandbox_id: Its live sandbox; empty if it has none.
        manager_id: The manager that holds the sandbox.
        lost: Its last sandbox was lost and it has not been reset since.
        had_sandbox: It has a sandbox, or had one.
        died: That happened under a command that ran in it.
        line: Actions that need the sandbox, in order of submit; only the first may run.
        occupied: The attempt that is in the sandbox (or makes it) now.
        held: Units of the sandbox's demand that it may keep between actions, and the cores behind them.
        held_mib: Memory that it holds of them, as its manager told last; 0 if that is not told.
        most_held_mib: The most that it was told to hold.
        made_as: Label of the reset that made it, as far as this process saw that.
        admitted_at: When it was let begin; 0 if that was before a restart, None while it has not been.
        command_timeout: The execution timeout that its newest env_reset gives to commands without one; 0 for none.
        began_kept: The journal has a row that tells that it began, whatever else is forgotten.
        account: What its attempts cost, and its sandbox between them.
    """

    request: TrajectoryRequest
    job: Job
    policy_version: int
    opened_at: float
    last_activity: float
    sandbox_id: str = ""
    manager_id: str = ""
    lost: bool = False
    had_sandbox: bool = False
    died: bool = False
    line: deque[Action] = field(default_factory=deque)
    occupied: Attempt | None = None
    open_actions: dict[str, Action] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    held_cores: tuple[int, ...] = ()
    held_mib: int = 0
    most_held_mib: int = 0
    made_as: str = ""
    admitted_at: float | None = None
    command_timeout: float = 0.0
    began_kept: bool = False
    account: Account = field(default_factory=Account)

    @property
    def key(self) -> TrajectoryKey:
        """(job id, trajectory id)."""
        return (self.request.job_id, self.request.trajectory_id)

    @property
    def group(self) -> Group | None:
        """Its group, if it has one."""
        return self.job.groups.get(self.request.group.group_id) if self.request.group is not None else None

    @property
    def began_at(self) -> float:
        """When it was let begin, as far as that is known; else when it was opened."""
        return self.admitted_at or self.opened_at

    @property
    def sandbox(self) -> SandboxRef:
        """Its live sandbox."""
        return SandboxRef(self.request.job_id, self.request.trajectory_id, self.sandbox_id, self.held_mib)

    @property
    def booked(self) -> dict[str, int]:
        """Units that are booked for its sandbox on the node."""
        held = self.held
        return {**held, MEMORY: booked_mib(self.held_mib, held[MEMORY])} if self.held_mib and MEMORY in held else held


@dataclass(slots=True)
class Group:
    """Siblings of one prompt.

    Attributes:
        members: Those that have a seat, in the order in which they were opened.
        lost: Former members that were lost, and so have none.
        completed: Members that completed.
        cancelled: It takes no more members.
        unfinished: Those of which something is open still, lost ones included.
        closed: Its members as they will be forgotten, while nothing of it is open.
        on_infra: What becomes of members that are lost, for `infra_budget` of them.
        masked: Lost members that keep their seats and count towards the quorum.
        dropped: Lost members without which it goes on.
        begun: A member was ever let begin.
        waiting: Members that wait to be let begin.
    """

    size: int
    quorum: int
    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int = 0
    members: dict[str, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    completed: int = 0
    cancelled: bool = False
    unfinished: int = 0
    closed: ClosedTogether | None = None
    masked: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    begun: bool = False
    waiting: dict[str, Trajectory] = field(default_factory=dict)

    @property
    def has_quorum(self) -> bool:
        """True if enough members completed, or stand masked for one that did."""
        return self.completed + len(self.masked) >= min(self.quorum, self.size - len(self.dropped))

    @property
    def together(self) -> tuple[str, ...]:
        """Members that are forgotten together: where losses are counted, those that were lost are among them."""
        return (*self.members, *(() if self.infra_budget >= NO_BUDGET else self.lost))

    def goes_alone(self, trajectory_id: str) -> bool:
        """Returns whether a member may be forgotten before its group: one that was lost where nobody counts those."""
        return trajectory_id in self.lost and self.infra_budget >= NO_BUDGET

    @property
    def spec(self) -> tuple[int, int, OnInfra, int]:
        """Fields that must be the same in every member."""
        return self.size, self.quorum, self.on_infra, self.infra_budget

    def lose(self, trajectory_id: str) -> None:
        """A member was lost: it leaves its seat to another, or keeps it."""
        if self.on_infra is OnInfra.REPLACE and len(self.lost) < self.infra_budget:
            self.members.pop(trajectory_id, None)
            self.lost[trajectory_id] = None
            return
        self.members[trajectory_id] = None
        if self.on_infra is OnInfra.MASK and len(self.masked) < self.infra_budget:
            self.masked.add(trajectory_id)
        elif self.on_infra is OnInfra.DROP and len(self.dropped) < self.infra_budget:
            self.dropped.add(trajectory_id)


@dataclass(slots=True, eq=False)
class Job:
    """An open job and everything under it.

    Attributes:
        begun_after: Its life: a token of its opening, which no other job has. Attempts with one that is no greater are
            of another job, which had this id before.
        over: It is being closed, and nothing of it is kept.
        opened_at: In seconds since the epoch.
        closed_at: Likewise; 0 until it is closed.
        active_at: When something happened in it last, in seconds since the epoch.
        closing: Closed trajectories of which actions are still being stopped.
        open_actions: How many have no outcome yet.
        open_trajectories: How many are open, or closed and not among `closed`.
        open_bytes: Bytes of the bodies of these actions.
        spec_bytes: Bytes of the specs of these trajectories and of the job.
        live_trajectories: How many of the open ones were admitted.
        live_versions: How many of these began with each policy version.
        begun_and_waiting: Groups that have begun and of which members wait to be let begin, by id.
        completed_trajectories: How many ever ended so.
        finished: Ids of those of its actions that have their outcome, the oldest outcome first.
        closed: Closed trajectories of which nothing is open any more, the first to be so first.
        closed_count: How many these are.
        finished_bytes: Bytes of these outcomes, and of what is kept of these trajectories.
        forgotten: Those actions, trajectories and groups of which nothing else is kept.
        state_counts: Actions by their states, those with an outcome included.
        dead_sandboxes: Actions that ended as their sandbox died under them.
        buffer: Its finished trajectories that no trainer has acknowledged yet.
        rewards_asked: Rewards ever asked of each service, by those of its trajectories that this process saw.
        generated_at: Services that it ever had generate; "" where it named none, or that is not known any more.
        account: What all under it cost, forgotten and repeated attempts too.
    """

    request: JobRequest
    policy_version: int = 0
    begun_after: Token = FIRST_TOKEN
    over: bool = False
    opened_at: float = 0.0
    closed_at: float = 0.0
    active_at: float = 0.0
    lease: Lease = field(default_factory=Lease)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    closed_trajectories: dict[str, ClosedTrajectory] = field(default_factory=dict)
    trajectory_specs: dict[str, bytes] = field(default_factory=dict)
    closing: dict[str, Trajectory] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    actions: dict[str, Action | FinishedAction] = field(default_factory=dict)
    open_actions: int = 0
    open_trajectories: int = 0
    open_bytes: int = 0
    spec_bytes: int = 0
    live_trajectories: int = 0
    live_versions: Counter[int] = field(default_factory=Counter)
    begun_and_waiting: dict[str, Group] = field(default_factory=dict)
    completed_trajectories: int = 0
    finished: deque[str] = field(default_factory=deque)
    closed: deque[ClosedTogether] = field(default_factory=deque)
    closed_count: int = 0
    finished_bytes: int = 0
    forgotten: ForgottenWork = field(default_factory=ForgottenWork)
    state_counts: dict[ActionState, int] = field(default_factory=dict)
    failure_counts: dict[str, int] = field(default_factory=dict)
    dead_sandboxes: int = 0
    buffer: Buffer = field(default_factory=Buffer)
    rewards_asked: dict[str, int] = field(default_factory=dict)
    generated_at: set[str] = field(default_factory=set)
    account: Account = field(default_factory=Account)

    def has_open_members(self, group: Group) -> bool:
        """Returns whether a member of a group may still finish."""
        return any(each in self.trajectories for each in group.members)
