"""What the simulated world offers to a scheduling policy, and what it expects of one.

The world knows physics: how fast commands run on shared cores, what a model load takes, what an API answers. It decides
nothing. A policy decides everything: when a trajectory may begin, where its sandbox goes, when an action starts, with
which width, in which lane. What it may know of an action ahead of time is what a scheduler could know: kind, label,
task, demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callsheet.benchmarks.simulator.scenario import Rollout, Scenario, Work


class Lane(Enum):
    """How a running command shares its node.

    FOREGROUND commands get what they can use, fairly if they exceed the node; BACKGROUND ones share what is left.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"


@dataclass(slots=True, eq=False)
class LiveRollout:
    """A trajectory in the world. Times are virtual seconds; -1 means not yet.

    Attributes:
        node: Where its sandbox is: set when its env_reset starts, empty again should that fail.
    """

    rollout: Rollout
    arrived_at: float
    began_at: float = -1.0
    ended_at: float = -1.0
    node: str = ""


@dataclass(slots=True, eq=False)
class Task:
    """An action that is ready or runs. The world fills in the times, all in virtual seconds; -1 means not yet.

    Attributes:
        attempt: From 1; a retried failure comes back as the same task with the next number.
        started_at: Of this attempt; -1 again between two attempts.
        node: Where it runs: a CPU or GPU node's name; empty for API calls.
        queue_s: Ready without a start, over all attempts so far.
        waited_s: Started without an end and waiting for cores, images or models, over all attempts so far.
        execution_s: Started without an end, less that and overhead, over all attempts so far.
        overhead_s: What the policy's machinery added, over all attempts so far.
    """

    sequence: int
    live: LiveRollout
    work: Work
    ready_at: float
    attempt: int = 1
    started_at: float = -1.0
    ended_at: float = -1.0
    node: str = ""
    width: int = 1
    lane: Lane = Lane.FOREGROUND
    queue_s: float = 0.0
    waited_s: float = 0.0
    execution_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def rollout(self) -> Rollout:
        """The trajectory as drawn ahead."""
        return self.live.rollout


@dataclass(frozen=True, slots=True)
class EndFacts:
    """How an attempt ended. `cpu_s`, `peak_memory_mb` and `execution_s` are what a manager measures.

    Attributes:
        failed: It is retried: `Policy.ready` follows at once, with the next attempt.
        retry_after_s: An API refused the call (429) and asks to be left alone for so long.
        execution_s: The execution clock: time at the CPU it could use, so that load never makes a timeout.
    """

    failed: bool = False
    timed_out: bool = False
    retry_after_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: int = 0
    execution_s: float = 0.0

    @property
    def peak_memory_bytes(self) -> int:
        """The same in bytes: facts are the `Usage` that the core is told."""
        return self.peak_memory_mb << 20


class World(Protocol):
    """What a policy can see and do."""

    scenario: Scenario

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""

    def begin(self, live: LiveRollout) -> None:
        """Lets a trajectory that arrived begin; its reset (or first generation) follows at this instant.

        Raises:
            ValueError: It began before, or has ended.
        """

    def start(self, task: Task, *, node: str, width: int = 1, lane: Lane = Lane.FOREGROUND, delay: float = 0.0) -> None:
        """Starts a task. `delay` is overhead before it executes (a pod's creation, a container's update).

        Image pulls, model loads and evictions are physics: they happen by themselves where what is needed is not there.
        A call beyond an API's quota is refused: it ends as failed, with a time to stay away.

        Raises:
            ValueError: It runs already, or the node does not exist, or its memory or GPUs do not suffice.
        """

    def set_lane(self, task: Task, lane: Lane) -> None:
        """Moves a running command to another lane."""

    def set_width(self, task: Task, width: int) -> None:
        """Gives a running command other cores; one that is not adaptive cannot use more than it started with."""

    def cpu_attained(self, task: Task) -> float:
        """CPU seconds a running command has used so far, as its node can measure them."""

    def resident(self, node: str) -> Counter[str]:
        """How many instances of which models are on the node's GPUs now."""

    def set_up_s(self, node: str, model: str) -> float | None:
        """Seconds before a call started now on that GPU node begins to be served; None where nothing is free for it.

        0 where an instance has a free slot; else what an instance in place of idle ones takes to come.
        """

    def wake_at(self, at: float) -> None:
        """Asks for `Policy.woken` at that time (once per call); for this very instant: after what is due now."""


class Policy(Protocol):
    """A way to schedule. The world calls it in virtual time; it acts through the world it was made with."""

    name: str

    def arrived(self, live: LiveRollout) -> None:
        """A trajectory wants to begin."""

    def ready(self, task: Task) -> None:
        """An action can start, for the first time or after a failure that is retried."""

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An attempt ended; its resources are free again."""

    def finished(self, live: LiveRollout) -> None:
        """A trajectory ended; its sandbox is gone."""

    def woken(self) -> None:
        """The time asked for by `wake_at` has come."""


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """Makes one policy.

    Attributes:
        name: Under which results are reported.
        make: Makes the policy for a world.
    """

    name: str
    make: Callable[[World], Policy]

    def __call__(self, world: World) -> Policy:
        """The policy for that world."""
        return self.make(world)
