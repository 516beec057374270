"""Loads: actions that keep coming until they are told to stop, in a closed loop or an open one."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.abc

One = Callable[[int], Awaitable[float]]
"""Does one action in a lane, of which none needs to be waited for; returns its overhead in seconds."""
_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Took:
    """How long an action took, in seconds.

    Attributes:
        latency_s: From when it was due to its outcome.
        overhead_s: Of it, by the scheduler's clock, neither waiting nor execution; 0 where nobody tells.
    """

    latency_s: float
    overhead_s: float


@dataclass(slots=True)
class ActionLoad(ABC):
    """Actions that keep coming.

    Attributes:
        one: Does one.
        lanes: How many lanes they are spread over.
        took: Of those that have ended, in the order of their ends.
        left_out: Those that were due and not begun, as too many were under way.
        stopping: Set for no more to be begun.
    """

    one: One
    lanes: int
    took: list[Took] = field(default_factory=list)
    left_out: int = 0
    stopping: bool = False

    async def run(self) -> None:
        """Begins actions until it is stopped, and waits for those under way.

        Raises:
            TimeoutError: They took five minutes and more.
        """
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                await self._begin_all(tasks)
                scope.deadline = anyio.current_time() + _DEADLINE_S
        if scope.cancelled_caught:
            raise TimeoutError(f"actions had no outcome {_DEADLINE_S:g} s after the last of them was begun")

    @abstractmethod
    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        """Begins actions until it is stopped."""

    async def _do(self, lane: int, due: float) -> None:
        overhead_s = await self.one(lane)
        self.took.append(Took(time.perf_counter() - due, overhead_s))


@dataclass(slots=True)
class ClosedLoad(ActionLoad):
    """One action after the other in each lane."""

    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        for lane in range(self.lanes):
            tasks.start_soon(self._repeat, lane)

    async def _repeat(self, lane: int) -> None:
        while not self.stopping:
            await self._do(lane, time.perf_counter())


@dataclass(slots=True)
class OpenLoad(ActionLoad):
    """Actions that come at random times of a seed's, whatever became of those before them.

    Attributes:
        rate: Mean of the actions a second.
        seed: Of the times.
    """

    rate: float = 1.0
    seed: int = 0
    _under_way: int = 0

    async def _begin_all(self, tasks: anyio.abc.TaskGroup) -> None:
        # Whoever is a second behind will not catch up, and all that waits must end in the end.
        most = max(self.lanes, round(self.rate))
        times, due, number = random.Random(self.seed), time.perf_counter(), 0
        while not self.stopping:
            due += times.expovariate(self.rate)
            await anyio.sleep(max(0.0, due - time.perf_counter()))
            if self._under_way >= most:
                self.left_out += 1
                continue
            self._under_way += 1
            tasks.start_soon(self._count, number % self.lanes, due)
            number += 1

    async def _count(self, lane: int, due: float) -> None:
        await self._do(lane, due)
        self._under_way -= 1
