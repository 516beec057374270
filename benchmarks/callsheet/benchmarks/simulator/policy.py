"""What the simulated world offers to a scheduling policy, and what it expects of one.

The world knows physics: how fast commands run on shared cores, what a model load takes, what an API answers. It decides
nothing. A policy decides everything: when a trajectory may begin, where its sandbox goes, when an action starts, with
which width, in which lane. What it may know of an action ahead of time is what a scheduler could know: kind, label,
task, demand; the oracle alone looks into `Work`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callsheet.benchmarks.simulator.scenario import EngineType, Generation, Rollout, Scenario, Work


class Lane(Enum):
    """How a running command shares its node.

    FOREGROUND commands get what they can use, fairly where they exceed the node; BACKGROUND ones share what is left.
    PAUSED ones get nothing.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    PAUSED = "paused"


@dataclass(slots=True, eq=False)
class Task:
    """An action that is ready or runs. The world fills in the times, all in virtual seconds; -1 means not yet.

    Attributes:
        attempt: From 1; a retried failure comes back as the same task with the next number.
        node: Where it runs: a CPU or GPU node's name; empty for API calls.
        overhead_s: What the policy's machinery added to this attempt and those before it.
    """

    sequence: int
    rollout: Rollout
    work: Work
    ready_at: float
    attempt: int = 1
    started_at: float = -1.0
    ended_at: float = -1.0
    node: str = ""
    width: int = 1
    lane: Lane = Lane.FOREGROUND
    execution_s: float = 0.0
    overhead_s: float = 0.0


@dataclass(slots=True, eq=False)
class LiveRollout:
    """A trajectory in the world; `node` is its sandbox's, set when its env_reset starts."""

    rollout: Rollout
    arrived_at: float
    began_at: float = -1.0
    ended_at: float = -1.0
    node: str = ""
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class EndFacts:
    """How an attempt ended. `cpu_s`, `peak_memory_mb` and `execution_s` are what a manager measures."""

    failed: bool = False
    timed_out: bool = False
    retry_after_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: int = 0
    execution_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an inference engine tells about itself."""

    engine: EngineType
    running: int
    waiting: int
    kv_tokens_used: int


class World(Protocol):
    """What a policy can see and do."""

    scenario: Scenario

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""

    def begin(self, live: LiveRollout) -> None:
        """Lets a trajectory that arrived begin; its reset (or first generation) follows at once."""

    def start(self, task: Task, *, node: str, width: int = 1, lane: Lane = Lane.FOREGROUND, delay: float = 0.0) -> None:
        """Starts a task. `delay` is overhead before it executes (a pod's creation, a container's update).

        Image pulls, model loads and evictions are physics: they happen by themselves where what is needed is not there.

        Raises:
            ValueError: It runs already, or the node does not exist, or its memory or GPUs do not suffice.
        """

    def set_lane(self, task: Task, lane: Lane) -> None:
        """Moves a running command to another lane."""

    def set_width(self, task: Task, width: int) -> None:
        """Gives a running command other cores; one that is not adaptive cannot use more than it started with."""

    def cancel_rollout(self, live: LiveRollout) -> None:
        """Ends a trajectory for good: its tasks stop and its resources return (redundant or too stale)."""

    def cpu_attained(self, task: Task) -> float:
        """CPU seconds a running command has used so far, as its node can measure them."""

    def resident(self, node: str) -> frozenset[str]:
        """Models that are on the node's GPUs now."""

    def wake_at(self, at: float) -> None:
        """Asks for `Policy.woken` at that time (once per call)."""


class Policy(Protocol):
    """A way to schedule. The world calls it in virtual time; it acts through the world it was made with."""

    name: str

    def arrived(self, live: LiveRollout) -> None:
        """A trajectory wants to begin."""

    def ready(self, task: Task) -> None:
        """An action can start, for the first time or after a failure that is retried."""

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An attempt ended; a failed one that is retried comes back through `ready`."""

    def route(self, live: LiveRollout, generation: Generation, engines: Sequence[EngineLoad]) -> int:
        """Index of the engine that serves a generation given in tokens; engines are named by their place."""

    def finished(self, live: LiveRollout) -> None:
        """A trajectory ended; its sandbox is gone."""

    def woken(self) -> None:
        """The time asked for by `wake_at` has come."""
