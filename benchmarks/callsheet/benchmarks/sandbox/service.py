"""The whole service with live sandboxes: what it adds to a command of a second, and how soon cores change hands."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from callsheet.benchmarks.measuring.clock import timed
from callsheet.benchmarks.sandbox.giving_way import giving_way_s
from callsheet.benchmarks.sandbox.measuring import NotMeasurableError, several_at_once
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.client import Client, Command, Demand, Hold, Job, Outcome, Resource, Succeeded, Trajectory
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.settings import CoreSharing, Isolation
from callsheet.options.common import LogLevel

LONG_ACTION_S = 1.0


@dataclass(slots=True)
class ServiceSamples:
    """Seconds from submit to outcome, by the client's clock.

    Attributes:
        step: Of a command that does nothing.
        long: Of one that takes `LONG_ACTION_S`.
        plain: Of the same command as a plain process of this one, in turn with those.
        giving_way: From a competitor's submit until a wide command has fewer cores; empty on a single core.
    """

    step: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    giving_way: list[float] = field(default_factory=list)


async def measure_service(settings: SandboxBenchSettings, sandboxes: int, directory: Path) -> ServiceSamples:
    """Measures with so many sandboxes live, in one manager; client, scheduler and manager are processes of their own.

    Raises:
        NotMeasurableError: An action did not succeed.
        NotNarrowedError: A wide command did not give way.
        TimeoutError: An action had no outcome.
        ProcessFailedError: A process did not start (inside an exception group).
    """
    samples = ServiceSamples()
    async with _job(settings, directory / "shared", CoreSharing.RANKED) as job:
        trajectories = await _open(job, settings, [str(number) for number in range(sandboxes)])
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.samples):
            samples.step.append(await _step_s(trajectory, Command.argv("true")))
        long = Command.argv("sleep", f"{LONG_ACTION_S:g}")
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.long_actions):
            samples.long.append(await _step_s(trajectory, long))
            with timed(samples.plain):
                await anyio.run_process(["sleep", f"{LONG_ACTION_S:g}"])
    cores = len(os.sched_getaffinity(0))
    if cores > 1:
        # Where cores are shared nobody gives way: all run at once.
        async with _job(settings, directory / "reserved", CoreSharing.RESERVED) as job:
            wide, competitor = await _open(job, settings, ["wide", "competitor"])
            samples.giving_way = await giving_way_s(wide, competitor, cores, settings.competitors)
    return samples


@asynccontextmanager
async def _job(settings: SandboxBenchSettings, directory: Path, share_cores: CoreSharing) -> AsyncIterator[Job]:
    stack_settings = StackSettings(
        directory,
        managers=(Role.SANDBOX,),
        isolation=Isolation(settings.isolation.value),
        share_cores=share_cores,
        log_level=LogLevel.WARNING,
    )
    async with (
        local_stack(stack_settings) as stack,
        Client(stack.address) as client,
        await client.open_job("bench") as job,
    ):
        yield job


async def _open(job: Job, settings: SandboxBenchSettings, names: Sequence[str]) -> Sequence[Trajectory]:
    trajectories = [job.trajectory(name) for name in names]
    demand = Demand(Resource("memory", settings.memory_mib, hold=Hold.TRAJECTORY), cpu=1)

    async def make(trajectory: Trajectory) -> None:
        await trajectory.open()
        succeeded(await trajectory.env_reset(demand=demand))

    await several_at_once(settings.concurrent, make, trajectories)
    return trajectories


async def _step_s(trajectory: Trajectory, command: Command) -> float:
    began = time.perf_counter()
    outcome = await trajectory.env_step(command)
    took = time.perf_counter() - began
    if succeeded(outcome).exit_code != 0:
        raise NotMeasurableError(f"{command} ended with {outcome}")
    return took


def succeeded(outcome: Outcome[Any]) -> Any:
    """Returns what an action returned.

    Raises:
        NotMeasurableError: It did not succeed.
    """
    if not isinstance(outcome, Succeeded):
        raise NotMeasurableError(f"an action did not succeed: {outcome}")
    return outcome.value
