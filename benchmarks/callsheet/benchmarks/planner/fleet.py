"""The fleet and the actions of the planner benchmark, drawn from a seed.

Nodes for sandboxes and CPU rewards, nodes with GPUs for reward models, nodes with inference engines, and APIs. They are
small for their number, so that a few thousand running actions fill them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from callsheet.benchmarks.peers import joining
from callsheet.scheduler.core.events import Event
from callsheet.scheduler.core.model import (
    CPU,
    MEMORY,
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    ResourceDemand,
    RetryPolicy,
    SpeedUp,
    Timeouts,
)
from callsheet.scheduler.core.registration import NodeDescription, ServiceDescription

GPU = "gpu"
JOBS = ("job-0", "job-1", "job-2")
_FOREVER = Timeouts(1e9, 1e9, 1e9)
_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class PoolKind:
    """Alike nodes: what they have and what they serve."""

    service: str
    kinds: frozenset[ActionKind]
    cores: int = 0
    memory: int = 0
    gpus: int = 0
    slots: int = 0

    def describe(self, name: str) -> NodeDescription:
        """One of the nodes."""
        capacity = {MEMORY: self.memory} if self.memory else {}
        if self.gpus:
            capacity[GPU] = self.gpus
        return NodeDescription(name, capacity, (tuple(range(self.cores)),) if self.cores else ())


_REWARDS = frozenset({ActionKind.REWARD, ActionKind.TOOL_CALL})
_ENGINE = frozenset({ActionKind.GENERATE})
POOL_KINDS = (
    PoolKind("tests", _REWARDS, cores=8, memory=32_768),
    PoolKind("tests", _REWARDS, cores=16, memory=32_768),
    PoolKind("tests", _REWARDS, cores=12, memory=131_072),
    PoolKind("judges", _REWARDS, gpus=4, memory=65_536),
    PoolKind("judges", _REWARDS, gpus=8, memory=131_072),
    PoolKind("engine", _ENGINE, slots=4),
    PoolKind("engine", _ENGINE, slots=6),
    PoolKind("tests", _REWARDS, cores=4, memory=65_536),
)


def fleet_events(nodes: int, pools: int) -> Iterator[Event]:
    """Every manager registers; nodes are divided evenly among the pools."""
    for index in range(nodes):
        kind = POOL_KINDS[index % pools]
        yield from joining(kind.describe(f"node-{index}"), ServiceDescription(kind.service, kind.kinds, kind.slots, {}))


@dataclass(frozen=True, slots=True)
class ActionClass:
    """Alike actions."""

    label: str
    job: str
    kind: ActionKind
    service: str
    demand: Demand
    seconds: float

    def request(self, number: int) -> ActionRequest:
        """One of them."""
        return ActionRequest(
            key=ActionKey(self.job, f"{self.label}/{number}"),
            kind=self.kind,
            trajectory_id="",
            service=self.service,
            demand=self.demand,
            timeouts=_FOREVER,
            retry=_RETRY,
            weight=1.0,
            wait_if_unservable=True,
            in_sandbox=False,
            expected_duration=self.seconds,
            body_hash=b"",
            spec=b"",
            label=self.label,
        )


def draw_classes(count: int, pools: int, seed: int) -> list[ActionClass]:
    """Classes for the services that the fleet has."""
    draw = random.Random(seed)
    classes = []
    for index in range(count):
        kind = draw.choice(POOL_KINDS[:pools])
        seconds = draw.lognormvariate(1.5, 1.2)
        demand = _draw_demand(kind, draw)
        job = JOBS[index % len(JOBS)]
        action_kind = ActionKind.GENERATE if kind.slots else ActionKind.REWARD
        classes.append(ActionClass(f"class-{index}", job, action_kind, kind.service, demand, seconds))
    return classes


def _draw_demand(kind: PoolKind, draw: random.Random) -> Demand:
    if kind.slots:
        return Demand()
    memory = ResourceDemand(MEMORY, size := draw.choice([512, 1_024, 2_048, 4_096]), size)
    if kind.gpus:
        chunk = draw.choice([1, 1, 2, 4])
        return Demand((ResourceDemand(GPU, chunk, chunk), memory))
    fewest = draw.choice([1, 1, 1, 2])
    most = fewest * draw.choice([1, 4, 8])
    return Demand((ResourceDemand(CPU, fewest, most, SpeedUp(draw.uniform(0.3, 0.98))), memory))
