"""How much the dispatch benchmark measures."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from callsheet.managers.sandbox.settings import FEWEST_MEMORY_MIB, Isolation, IsolationOption
from callsheet.options.common import whole_numbers
from callsheet.options.declaration import AtLeast, Setting, check_least


class MeasuredKind(StrEnum):
    """The kinds of actions that are measured."""

    NOOP = "noop"
    """A call of a tool that does nothing."""
    ENV_STEP = "env_step"
    """`true` in a sandbox."""
    ENV_RESET = "env_reset"
    """A trajectory from its opening to its close, with a new sandbox."""
    GENERATE = "generate"
    """64 tokens of the scripted engine, for a prompt of as many."""
    CHAT = "chat"
    """The same by HTTP through a gateway."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How much work Ray gets.

    Attributes:
        windows: Calls in flight to try, each `ray.get` taking a whole window; the best of them counts.
        repetitions: Measurements of each window; their median counts.
    """

    calls: Annotated[int, Setting("Calls in one of Ray's repetitions.", flag="--ray-calls", least=1)] = 4000
    windows: tuple[int, ...] = (1000, 4000)
    repetitions: int = 3


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Sizes of the dispatch benchmark.

    Attributes:
        idle_warm_up: Unmeasured actions before each repetition.
        open_lanes: Sandboxes, or trajectories of chats, over which an open loop's actions are spread.
        ray: Ray's share.
    """

    kind: Annotated[MeasuredKind, Setting("The kind of the actions.")] = MeasuredKind.NOOP
    in_flight: Annotated[
        tuple[int, ...],
        Setting("Closed loops: actions under way, with commas.", default="1,8,64", text=str, parse=whole_numbers),
    ] = (1, 8, 64)
    open_loop: Annotated[
        tuple[int, ...],
        Setting("Open loops: actions a second, with commas.", default="200,800,1500", text=str, parse=whole_numbers),
    ] = (200, 800, 1_500)
    climb: Annotated[
        bool,
        Setting(
            "Whether the last rate is raised by a quarter until the 99th percentile is 100 ms, twice.",
            flag="--climb/--no-climb",
        ),
    ] = False
    own_core: Annotated[
        bool,
        Setting("Whether the scheduler has the first core, and the rest the others.", flag="--own-core/--any-core"),
    ] = False
    seconds: Annotated[float, Setting("Seconds that each loop is measured for.", least=0.1)] = 10.0
    managers: Annotated[int, Setting("Managers of the no-ops; several are sessions of one process.", least=1)] = 1
    memory_mib: Annotated[int, Setting("Limit of each sandbox.", least=FEWEST_MEMORY_MIB)] = 32
    isolation: IsolationOption = Isolation.BUBBLEWRAP
    open_lanes: Annotated[int, AtLeast(1)] = 64
    beside: Annotated[
        bool,
        Setting("Whether no-ops also run in a burst, and beside raw gRPC streams and Ray.", flag="--beside/--alone"),
    ] = True
    actions: Annotated[int, Setting("No-ops in one repetition of the throughput.", least=1)] = 20_000
    window: Annotated[int, Setting("No-ops under way meanwhile.", least=1)] = 2_000
    repetitions: Annotated[int, Setting("Repetitions beside the streams; their medians count.", least=1)] = 3
    idle_samples: Annotated[int, Setting("Actions of the idle latency.", least=1)] = 900
    idle_warm_up: int = 100
    burst: Annotated[int, Setting("No-ops submitted at once.", least=1)] = 10_000
    seed: Annotated[int, Setting("Action ids and the arrivals of open loops are drawn from it.", least=0)] = 0
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is too small, or several managers are to do something; the message names it.
        """
        check_least(self)
        for name in ("in_flight", "open_loop"):
            if min(getattr(self, name), default=1) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be numbers of at least 1")
        if self.own_core and len(os.sched_getaffinity(0)) < 2:
            raise ValueError("own_core: True needs two cores")
        if self.managers > 1 and self.kind is not MeasuredKind.NOOP:
            raise ValueError(f"managers: {self.managers} must be 1 for {self.kind}; several are for noop alone")

    @property
    def has_rivals(self) -> bool:
        """Whether raw streams and Ray run beside it."""
        return self.beside and self.kind is MeasuredKind.NOOP and not self.own_core
