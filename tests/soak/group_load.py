"""Groups of rollouts of which some hang and some crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import anyio
from callsheet.client import (
    Demand,
    EnvError,
    Failed,
    FailureKind,
    FailurePolicy,
    Job,
    OnInfra,
    Reason,
    Timeouts,
    Trajectory,
)

SIZE = 8
STEPS = 4
_AT_ONCE = 8
_EVER_S = 3600.0
_NOTHING = Demand()
_CRASH: Failed[Any] = Failed(FailureKind.ENV, Reason.CANNOT_EXECUTE, "the environment crashed")
_TO_BAD_LUCK = frozenset({FailureKind.INFRA, FailureKind.ENV})
REPLACED = FailurePolicy(OnInfra.REPLACE, infra_budget=4 * SIZE, lost_to=_TO_BAD_LUCK)
"""Of the load's job: another trajectory takes the place of each that crashes."""


class Fault(Enum):
    """What goes wrong in a rollout."""

    HANG = auto()
    CRASH = auto()


Faults = Callable[[str], Fault | None]
"""What goes wrong in a trajectory, by its name."""


def by_chance(name: str) -> Fault | None:
    """A tenth of the trajectories hang, a tenth crash."""
    drawn = random.Random(name).random()
    return Fault.HANG if drawn < 0.1 else Fault.CRASH if drawn < 0.2 else None


def as_many_as_seats(free: int) -> Faults:
    """In each group so many members hang for good; of the others every fifth crashes."""

    def fault_of(name: str) -> Fault | None:
        group, _, place = name.partition("/")
        if int(place) in random.Random(group).sample(range(SIZE), free):
            return Fault.HANG
        return Fault.CRASH if random.Random(name).random() < 0.2 else None

    return fault_of


@dataclass(eq=False)
class GroupLoad:
    """Runs groups, eight at once.

    Attributes:
        job: Its job, with the policy `REPLACED`.
        quorum: Members of a group that must complete.
        step_s: What a step takes on average.
        faults: What goes wrong.
        hang_s: When a hanging step runs into its timeout.
        met: Trajectories by what went wrong in them.
    """

    job: Job
    quorum: int
    step_s: float
    faults: Faults
    hang_s: float = _EVER_S
    met: dict[Fault, set[str]] = field(default_factory=lambda: {fault: set() for fault in Fault})

    async def run(self, groups: Iterator[int]) -> None:
        """Runs the groups of these numbers."""
        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(self._lane, groups)

    async def _lane(self, groups: Iterator[int]) -> None:
        for number in groups:
            async with self.job.group(f"g{number}", size=SIZE, quorum=self.quorum) as group:
                group.start(self._roll_out)

    async def _roll_out(self, trajectory: Trajectory) -> None:
        name = trajectory.trajectory_id
        drawn, fault = random.Random(f"steps of {name}"), self.faults(name)
        at = drawn.randrange(STEPS)
        await trajectory.env_reset(demand=_NOTHING)
        for step in range(STEPS):
            if fault is not None and step == at:
                self.met[fault].add(name)
                if fault is Fault.CRASH:
                    raise EnvError(_CRASH)
                await self._step(trajectory, _EVER_S)
            await self._step(trajectory, self.step_s * drawn.uniform(0.5, 1.5))
        await trajectory.finish(drawn.random())

    async def _step(self, trajectory: Trajectory, takes_s: float) -> None:
        timeouts = Timeouts(start_to_close_s=self.hang_s)
        step = await trajectory.env_step("step", demand=_NOTHING, expected_duration_s=takes_s, timeouts=timeouts)
        step.unwrap()
