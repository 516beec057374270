"""What several benchmarks do with a job: actions that must succeed, trajectories with sandboxes, many at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio
from callsheet.client import Demand, Hold, Job, Outcome, Resource, Succeeded, Trajectory

T = TypeVar("T")


class NotMeasurableError(Exception):
    """Something that is measured did not work."""


def succeeded(outcome: Outcome[Any]) -> Any:
    """Returns what an action returned.

    Raises:
        NotMeasurableError: It did not succeed.
    """
    if not isinstance(outcome, Succeeded):
        raise NotMeasurableError(f"an action did not succeed: {outcome}")
    return outcome.value


async def several_at_once(most: int, do: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Does something with every item, with so many at a time."""
    places = anyio.CapacityLimiter(most)

    async def do_one(item: T) -> None:
        async with places:
            await do(item)

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(do_one, item)


def sandbox_demand(memory_mib: int) -> Demand:
    """What making a sandbox demands: a core, and memory that its trajectory keeps."""
    return Demand(Resource("memory", memory_mib, hold=Hold.TRAJECTORY), cpu=1)


async def open_trajectories(job: Job, names: Sequence[str], memory_mib: int, concurrent: int) -> Sequence[Trajectory]:
    """Opens trajectories, each with a sandbox, so many at a time.

    Raises:
        NotMeasurableError: A sandbox was not made.
    """
    trajectories = [job.trajectory(name) for name in names]
    demand = sandbox_demand(memory_mib)

    async def make(trajectory: Trajectory) -> None:
        await trajectory.open()
        succeeded(await trajectory.env_reset(demand=demand))

    await several_at_once(concurrent, make, trajectories)
    return trajectories
