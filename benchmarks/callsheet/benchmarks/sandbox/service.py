"""The whole service with live sandboxes: what it adds to a command of a second, and how soon cores change hands."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import psutil
from callsheet.benchmarks.measuring.actions import NotMeasurableError, open_trajectories, succeeded
from callsheet.benchmarks.measuring.clock import timed
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.client import (
    ActionHandle,
    Client,
    Command,
    CommandResult,
    Demand,
    Elastic,
    EnvStep,
    Job,
    Trajectory,
)
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.settings import CoreSharing, Isolation
from callsheet.options.common import LogLevel

_Found = TypeVar("_Found")

_POLL_S = 0.0002
_CHANGE_S = 10.0
_DEADLINE_S = 60.0
# Longer than it is looked for: what lasts milliseconds may be over before this process has its turn to look.
_SHORT = EnvStep(Command.argv("sleep", f"{2 * _CHANGE_S:g}"))


class NotNarrowedError(Exception):
    """A wide command did not give way, or did not get its cores back."""


async def giving_way_s(wide: Trajectory, short: Trajectory, cores: int, times: int) -> list[float]:
    """Seconds from the submit of a command that waits until the wide one's processes are on fewer cores.

    Args:
        wide: Runs a command of one to `cores` cores meanwhile.
        short: Runs the others, each until the wide one has given way.
        cores: All there are, at least 2.
        times: How often.

    Raises:
        NotNarrowedError: That did not happen.
        TimeoutError: A command had no outcome.
        ProcessLookupError: The wide command ended.
    """
    took = []
    mark = _unlike_any_other()
    running = await wide.submit(EnvStep(_wide(mark)), demand=Demand(cpu=Elastic(1, cores)))
    try:
        process = await _seen(lambda: _find(mark), "is not to be seen")
        for _ in range(times):
            await _seen(lambda: _now_if(_cores_of(process) == cores), "does not get its cores back")
            began = time.perf_counter()
            action = await short.submit(_SHORT, demand=Demand(cpu=1))
            try:
                took.append(await _seen(lambda: _now_if(_cores_of(process) < cores), "does not give way") - began)
            finally:
                await _end(action)
    finally:
        await _end(running)
    return took


def _wide(mark: str) -> Command:
    """Two processes that use all they get, and one to know them by."""
    return Command.shell(f"for _ in 1 2; do while :; do :; done & done; sleep {mark}")


def _unlike_any_other() -> str:
    """Returns seconds to sleep that no other command on this machine names: other benchmarks may run here."""
    return f"86400.{secrets.randbelow(10**9):09d}"


async def _end(action: ActionHandle[CommandResult]) -> None:
    with anyio.fail_after(_DEADLINE_S):
        await action.cancel()
        await action.outcome()


def _find(mark: str) -> int | None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == ["sleep", mark]:
                return process.pid
    return None


def _cores_of(process: int) -> int:
    return len(os.sched_getaffinity(process))


def _now_if(condition: bool) -> float | None:
    return time.perf_counter() if condition else None


async def _seen(look: Callable[[], _Found | None], otherwise: str) -> _Found:
    """Looks until there is something; what is looked for is no event in this process."""

    def poll() -> _Found:
        give_up_at = time.perf_counter() + _CHANGE_S
        while (found := look()) is None:
            if time.perf_counter() > give_up_at:
                raise NotNarrowedError(f"for {_CHANGE_S:g} s, a wide command {otherwise}")
            time.sleep(_POLL_S)
        return found

    return await anyio.to_thread.run_sync(poll)


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
        trajectories = await _open(job, settings, *(str(number) for number in range(sandboxes)))
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
            wide, competitor = await _open(job, settings, "wide", "competitor")
            samples.giving_way = await giving_way_s(wide, competitor, cores, settings.competitors)
    return samples


@asynccontextmanager
async def _job(settings: SandboxBenchSettings, directory: Path, share_cores: CoreSharing) -> AsyncIterator[Job]:
    stack_settings = StackSettings(
        directory,
        managers=(Role.SANDBOX,),
        given={"isolation": Isolation(settings.isolation.value), "share_cores": share_cores},
        log_level=LogLevel.WARNING,
    )
    async with (
        local_stack(stack_settings) as stack,
        Client(stack.address) as client,
        await client.open_job("bench") as job,
    ):
        yield job


async def _open(job: Job, settings: SandboxBenchSettings, *names: str) -> Sequence[Trajectory]:
    return await open_trajectories(job, names, settings.memory_mib, settings.concurrent)


async def _step_s(trajectory: Trajectory, command: Command) -> float:
    began = time.perf_counter()
    outcome = await trajectory.env_step(command)
    took = time.perf_counter() - began
    if succeeded(outcome).exit_code != 0:
        raise NotMeasurableError(f"{command} ended with {outcome}")
    return took
