"""The core's vocabulary: kinds, states, demands, timeouts, the validated request of an action, and refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple, Self

from callsheet.scheduler.core.words.staleness import StalenessPolicy
from callsheet.timing.backoff import backoff_s
from callsheet.v1 import refusals

# What the core knows of the tokens of generations, which engines hold in their KV caches.


class GenerationSize(NamedTuple):
    """What a generation asks for.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        max_new_tokens: The most it may write.
    """

    prompt_tokens: int
    max_new_tokens: int

    @property
    def most_tokens(self) -> int:
        """What it can come to hold of a KV cache."""
        return self.prompt_tokens + self.max_new_tokens


class GeneratedTokens(NamedTuple):
    """What became of a generation: the tokens it wrote, and those of its prompt that were found in the cache."""

    new_tokens: int
    cached_tokens: int


CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"


class ActionKind(IntEnum):
    """The five kinds of action."""

    GENERATE = 1
    ENV_RESET = 2
    ENV_STEP = 3
    TOOL_CALL = 4
    REWARD = 5


class ActionState(Enum):
    """Where an action is in its life."""

    # Every action counts its states, and the hash of an enumeration is computed in Python.
    __hash__ = object.__hash__

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether the action has its outcome."""
        return self in _TERMINAL


_TERMINAL = frozenset({ActionState.SUCCEEDED, ActionState.FAILED, ActionState.CANCELLED, ActionState.EXPIRED})


class FailureKind(IntEnum):
    """Who or what a failure is due to."""

    POLICY = 1
    ENV = 2
    INFRA = 3
    TIMEOUT = 4
    QUOTA = 5
    RESOURCE_LIMIT = 6
    CANCELLED = 7


class TimeoutKind(IntEnum):
    """Which of the four timeouts ran out; NONE where a failure is no timeout."""

    NONE = 0
    SCHEDULE_TO_START = 1
    START_TO_CLOSE = 2
    SCHEDULE_TO_CLOSE = 3
    HEARTBEAT = 4


class PriorityClass(IntEnum):
    """How a job ranks; smaller is served first."""

    EVAL = 1
    TRAIN = 2
    BATCH = 3


class Opening(IntEnum):
    """What an open found."""

    CREATED = 1
    ATTACHED = 2
    CLOSED = 3


class SandboxCopy(Enum):
    """Whether an action runs in a new sandbox that begins with the files of its trajectory's."""

    NEVER = "never"
    IF_ANY = "if any"
    """With those files if the trajectory has a sandbox when it is submitted, or will have one by then; else without."""
    ALWAYS = "always"
    """It is refused where the trajectory has none."""


class TrajectoryEnd(Enum):
    """How a trajectory ended; the journal has these values."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    LOST = "lost"


class ActionKey(NamedTuple):
    """Identifies an action; also the client's idempotency key."""

    job_id: str
    action_id: str


TrajectoryKey = tuple[str, str]
"""(job id, trajectory id)."""


class Token(NamedTuple):
    """A fencing token; later grants are greater."""

    epoch: int
    sequence: int


@dataclass(slots=True)
class Opened:
    """What an open found; `life` is that of the job, and `end` is how a trajectory ended that is closed."""

    opening: Opening
    end: TrajectoryEnd | None = None
    life: Token = field(default=Token(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How execution time falls with units, relative to the fewest units.

    Attributes:
        amdahl_fraction: Parallel fraction in [0, 1]; ignored when there are points.
        points: (units, speed-up) with increasing units; linear between, flat after the last.
    """

    amdahl_fraction: float = 1.0
    points: tuple[tuple[int, float], ...] = ()

    def at(self, units: int, min_units: int) -> float:
        """Execution time at `min_units` divided by execution time at `units`."""
        if not self.points:
            ratio = units / max(min_units, 1)
            return 1.0 / ((1.0 - self.amdahl_fraction) + self.amdahl_fraction / ratio)
        previous_units, previous_gain = max(min_units, 1), 1.0
        for point_units, gain in self.points:
            if units < point_units:
                share = (units - previous_units) / (point_units - previous_units)
                return previous_gain + share * (gain - previous_gain)
            previous_units, previous_gain = point_units, gain
        return previous_gain


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """The need for one resource: `min_units..max_units`, held by the action or by its trajectory.

    Units are whole: a fraction that was asked for is rounded up.

    Attributes:
        most_milli_units: Thousandths of a unit that it can use at most, where these are no whole units; else 0.
        guaranteed: All of it is booked while it is held, however little of it is in use.
    """

    resource: str
    min_units: int
    max_units: int
    speed_up: SpeedUp = SpeedUp()
    held_by_trajectory: bool = False
    most_milli_units: int = 0
    guaranteed: bool = False

    @property
    def elastic(self) -> bool:
        """Whether more than the fewest units help."""
        return self.max_units > self.min_units

    def at_least(self, least: ResourceDemand) -> ResourceDemand:
        """Returns it with no fewer units than another one has."""
        few, most = max(self.min_units, least.min_units), max(self.max_units, least.max_units)
        return replace(self, min_units=few, max_units=most)


@dataclass(frozen=True, slots=True)
class Demand:
    """A vector over resources. It is part of every class key, so its hash is computed once."""

    entries: tuple[ResourceDemand, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.entries))

    def __hash__(self) -> int:
        return self._hash

    def minimum(self) -> dict[str, int]:
        """The fewest units by resource, zeros left out."""
        return {entry.resource: entry.min_units for entry in self.entries if entry.min_units}

    @property
    def by_need_mib(self) -> int:
        """Memory that a sandbox may have and need not be booked with, in MiB; 0 for none."""
        held = (each for each in self.entries if each.held_by_trajectory and not (each.guaranteed or each.elastic))
        return next((entry.min_units for entry in held if entry.resource == MEMORY), 0)

    def at_least(self, least: Demand) -> Demand:
        """Returns it with no fewer units of any resource than another demand has."""
        floors = {entry.resource: entry for entry in least.entries}
        own = [entry.at_least(floors.pop(entry.resource, entry)) for entry in self.entries]
        return Demand((*own, *floors.values()))

    def with_guaranteed_memory(self) -> Demand:
        """The same with its memory booked whole."""
        return Demand(tuple(replace(each, guaranteed=each.resource == MEMORY) for each in self.entries))

    def most_cores(self) -> float:
        """Cores that it uses at most by its own word; infinite unless it asked for a fraction."""
        for entry in self.entries:
            if entry.resource == CPU and entry.most_milli_units:
                return entry.most_milli_units / 1000
        return math.inf


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The four deadlines in seconds; `heartbeat` 0 means none.

    Attributes:
        execution_given: Whether `start_to_close` is the client's own; else a sandbox's default takes its place.
        close_given: Whether `schedule_to_close` is the client's own; else it grows with what must nest in it.
    """

    schedule_to_start: float
    start_to_close: float
    schedule_to_close: float
    heartbeat: float = 0.0
    execution_given: bool = True
    close_given: bool = True

    def with_default_execution(self, start_to_close: float) -> Self:
        """These deadlines with a sandbox's default (seconds; 0 if it has none) where the client gave none."""
        if self.execution_given or not start_to_close:
            return self
        close = self.schedule_to_close
        if not self.close_given:
            close = max(close, self.schedule_to_start + start_to_close)
        return replace(self, start_to_close=min(start_to_close, close), schedule_to_close=close)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When and how often a failed attempt is tried again; times in seconds."""

    max_attempts: int = 3
    initial_backoff: float = 0.2
    backoff_multiplier: float = 2.0
    max_backoff: float = 30.0

    def backoff(self, failed_attempt: int) -> float:
        """Seconds to wait after the given attempt (from 1) failed."""
        return backoff_s(failed_attempt, self.initial_backoff, self.max_backoff, multiplier=self.backoff_multiplier)


@dataclass(slots=True, eq=False)
class ActionRequest:
    """A validated action. Never changed once it is made; see `events` for why it is not frozen.

    Attributes:
        service: Name of the hosted service that must serve it; empty for any service of the kind.
        in_sandbox: It needs its trajectory's sandbox, or makes it. Of one with a `copy` it is settled by its submit.
        spec: The serialized ActionSpec; opaque to the core.
        body_hash: Hash of the spec; two submits with one key must agree in it.
        expected_duration: Seconds at the fewest units; 0 if unknown.
        set_up: Name of what its sandbox begins with, for an env_reset whose set-up may be kept; else empty.
        called_once: A call that may have begun is not made again, unless a quota refused it.
        command_timeout: `start_to_close` of commands in the sandbox that an env_reset makes, for those that have none;
            in seconds, 0 for no such default.
        copy: Whether it runs in a copy of its trajectory's sandbox.
        payloads: SHA-256 of the stored payloads that it refers to.
        generation: Of a generate, how many tokens it is about.
        traceparent: The span that caused it, as W3C Trace Context writes it; empty if none was told.
        own_demand: The demand that its client stated, once that of its service was added to `demand`; None before.
    """

    key: ActionKey
    kind: ActionKind
    trajectory_id: str
    service: str
    demand: Demand
    timeouts: Timeouts
    retry: RetryPolicy
    weight: float
    wait_if_unservable: bool
    in_sandbox: bool
    expected_duration: float
    body_hash: bytes
    spec: bytes
    label: str = ""
    task: str = ""
    set_up: str = ""
    called_once: bool = False
    command_timeout: float = 0.0
    copy: SandboxCopy = SandboxCopy.NEVER
    payloads: tuple[str, ...] = ()
    generation: GenerationSize | None = None
    traceparent: str = ""
    own_demand: Demand | None = None

    def with_service_demand(self, least: Demand | None) -> ActionRequest:
        """Returns it with a demand of no less than its service's: no demand passes by the queue of a quota.

        Returns the request itself if its service has none, or if it has this one already.
        """
        if least is None:
            return self
        own = self.demand if self.own_demand is None else self.own_demand
        demand = own.at_least(least)
        return self if demand == self.demand else replace(self, demand=demand, own_demand=own)

    @property
    def needs_sandbox(self) -> bool:
        """It runs in a sandbox that must exist already, or in a copy of it, so it is pinned to its node."""
        return self.in_sandbox and self.kind is not ActionKind.ENV_RESET

    @property
    def copies_sandbox(self) -> bool:
        """It runs in a copy of its trajectory's sandbox."""
        return self.in_sandbox and self.copy is not SandboxCopy.NEVER

    @property
    def changes_sandbox(self) -> bool:
        """It runs in a sandbox that exists already, and changes its state."""
        return self.needs_sandbox and not self.copies_sandbox


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A validated job.

    Attributes:
        grace: Seconds that the job lives on without a client session; None takes the scheduler's.
        detached: The job needs no session and never expires.
        dead_sandbox_is_infra: A sandbox that dies under a command fails its action as INFRA instead of ENV.
        idle_timeout: The job closes after so many seconds without work; None takes the scheduler's, or none if
            detached.
        max_buffered: With so many finished trajectories in the job's buffer no more begin; 0 takes the scheduler's.
        admit_within: See `StalenessPolicy`, as for the next one.
        max_staleness: Its `evict_beyond`; 0 for none.
    """

    job_id: str
    weight: float
    priority_class: PriorityClass
    max_actions: int
    max_staleness: int
    spec: bytes
    grace: float | None = None
    detached: bool = False
    idle_timeout: float | None = None
    dead_sandbox_is_infra: bool = False
    max_buffered: int = 0
    admit_within: int | None = None
    select_within: int | None = None

    @property
    def staleness(self) -> StalenessPolicy:
        """Its staleness policy."""
        return StalenessPolicy(self.admit_within, self.select_within, self.max_staleness or None)


class OnInfra(IntEnum):
    """What a group does with a member that was lost to an INFRA failure."""

    REPLACE = 1
    RETRY = 2
    MASK = 3
    DROP = 4


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Membership in a group of siblings; `quorum` completed ones make the others redundant.

    Attributes:
        on_infra: What becomes of members that are lost.
        infra_budget: For how many; None for as many as it has seats, and for REPLACE without end.
    """

    group_id: str
    size: int
    quorum: int
    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int | None = None


@dataclass(frozen=True, slots=True)
class TrajectoryResult:
    """What a finished trajectory has for its trainer.

    Attributes:
        encoded: As the contract has it.
        payloads: SHA-256 of the stored payloads that it refers to.
        reward: What it was worth.
    """

    encoded: bytes
    payloads: tuple[str, ...] = ()
    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class TrajectoryRequest:
    """A validated trajectory; `idle_timeout` and `deadline` in seconds, no `deadline` is 0."""

    job_id: str
    trajectory_id: str
    group: GroupRequest | None
    idle_timeout: float
    spec: bytes
    deadline: float = 0.0


# The refusals of the contract are the core's own.
RefusalCode = refusals.RefusalCode
RefusedError = refusals.RefusedError
invalid = refusals.invalid


class MustWaitError(Exception):
    """An event comes too early: what takes many steps and comes before it is under way still."""


def not_found(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of a name for what there is not."""
    return RefusedError(RefusalCode.NOT_FOUND, field, value, rule)


def failed_precondition(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of what cannot be as things stand."""
    return RefusedError(RefusalCode.FAILED_PRECONDITION, field, value, rule)
