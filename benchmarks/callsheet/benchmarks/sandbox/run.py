"""Runs the sandbox benchmark from beginning to end: what sandboxes take through the service, while others live."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from callsheet.benchmarks.measuring.actions import NotMeasurableError, open_trajectories, sandbox_demand, succeeded
from callsheet.benchmarks.measuring.clock import Progress, timed
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import percentile, rounded
from callsheet.benchmarks.runner import Bar, BenchmarkReport, new_table
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.client import Client, Command, Job, Trajectory
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.node import usable_memory_mib
from callsheet.managers.sandbox.settings import Isolation
from callsheet.options.common import LogLevel
from callsheet.options.temporary_directories import temporary_directory
from rich.console import RenderableType

LONG_ACTION_S = 1.0
MOST_OVERHEAD = 0.03
_ROWS = (
    ("env_step of true, ms", ("step_p50_ms", "step_p99_ms")),
    ("env_reset, ms", ("reset_p50_ms", "reset_p99_ms")),
    ("created a second", ("creates_per_s",)),
    ("overhead of a 1 s action", ("overhead_share",)),
    ("  of a plain process", ("plain_overhead_share",)),
)
"""Headings, and the figures in a row."""


@dataclass(slots=True)
class ServiceSamples:
    """Seconds from submit to outcome, by the client's clock.

    Attributes:
        fill: Until all sandboxes were made, several at once; one entry.
        reset: Of an env_reset that replaces a sandbox.
        step: Of a command that does nothing.
        long: Of one that takes `LONG_ACTION_S`.
        plain: Of the same command as a plain process of this one, in turn with those.
    """

    fill: list[float] = field(default_factory=list)
    reset: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)


async def measure_service(settings: SandboxBenchSettings, sandboxes: int, directory: Path) -> ServiceSamples:
    """Measures with so many sandboxes live, in one manager; client, scheduler and manager are processes of their own.

    Raises:
        NotMeasurableError: An action did not succeed.
        TimeoutError: An action had no outcome.
        ProcessFailedError: A process did not start (inside an exception group).
    """
    samples = ServiceSamples()
    async with _job(settings, directory / "shared") as job:
        names = [str(number) for number in range(sandboxes)]
        with timed(samples.fill):
            trajectories = await open_trajectories(job, names, settings.memory_mib, settings.concurrent)
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.samples):
            samples.step.append(await _step_s(trajectory, Command.argv("true")))
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.samples):
            with timed(samples.reset):
                succeeded(await trajectory.env_reset(demand=sandbox_demand(settings.memory_mib)))
        long = Command.argv("sleep", f"{LONG_ACTION_S:g}")
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.long_actions):
            samples.long.append(await _step_s(trajectory, long))
            with timed(samples.plain):
                await anyio.run_process(["sleep", f"{LONG_ACTION_S:g}"])
    return samples


@asynccontextmanager
async def _job(settings: SandboxBenchSettings, directory: Path) -> AsyncIterator[Job]:
    stack_settings = StackSettings(
        directory,
        managers=(Role.SANDBOX,),
        given={"isolation": Isolation(settings.isolation.value)},
        log_level=LogLevel.WARNING,
    )
    async with (
        local_stack(stack_settings) as stack,
        Client(stack.address) as client,
        await client.open_job("bench") as job,
    ):
        yield job


async def _step_s(trajectory: Trajectory, command: Command) -> float:
    began = time.perf_counter()
    outcome = await trajectory.env_step(command)
    took = time.perf_counter() - began
    if succeeded(outcome).exit_code != 0:
        raise NotMeasurableError(f"{command} ended with {outcome}")
    return took


async def run_sandbox_bench(settings: SandboxBenchSettings, progress: Progress = lambda _: None) -> SandboxBenchReport:
    """Measures every number of sandboxes, one after another.

    Args:
        settings: How much.
        progress: Told, as a sentence, what is being measured.

    Raises:
        NotMeasurableError: An action did not succeed, or the memory is too small for so many sandboxes.
        ProcessFailedError: A process of the service did not start (inside an exception group).
    """
    _check_memory(settings, usable_memory_mib())
    machine = describe_machine()
    results = []
    with temporary_directory("callsheet-sandboxes-") as directory:
        for count in settings.sandboxes:
            progress(f"{count} sandboxes: made, used and reset")
            service = await measure_service(settings, count, Path(directory, f"service-{count}"))
            results.append(SandboxResult(count, service))
    return SandboxBenchReport(
        isolation=settings.isolation.value,
        machine=machine,
        samples=settings.samples,
        results=results,
    )


def _check_memory(settings: SandboxBenchSettings, usable_mib: int) -> None:
    """Without the room for them all the last ones would wait for one of the others to go."""
    # One more competes with them.
    needed_mib = (max(settings.sandboxes) + 1) * settings.memory_mib
    if needed_mib > usable_mib:
        raise NotMeasurableError(
            f"sandboxes: {max(settings.sandboxes)} of {settings.memory_mib} MiB each, and one more, hold {needed_mib} "
            f"MiB and this machine has {usable_mib}; ask for fewer, or for less memory_mib"
        )


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """One number of live sandboxes."""

    sandboxes: int
    service: ServiceSamples

    @property
    def overhead_share(self) -> float:
        """The part of a one-second action, from submit to outcome, that is not its command; p50."""
        return _share_beyond_command(self.service.long)

    @property
    def plain_overhead_share(self) -> float:
        """The same of a plain process: what this machine, as busy as it was, would have taken anyway."""
        return _share_beyond_command(self.service.plain)

    def as_json(self) -> dict[str, Any]:
        """The figures as one object."""
        figures = {
            "sandboxes": self.sandboxes,
            **{
                f"{verb}_p{percent}_ms": 1e3 * percentile(getattr(self.service, verb), percent)
                for verb in ("step", "reset")
                for percent in (50, 99)
            },
            "creates_per_s": self.sandboxes / self.service.fill[0],
            "overhead_share": self.overhead_share,
            "plain_overhead_share": self.plain_overhead_share,
        }
        return rounded(figures, digits=4)


@dataclass(frozen=True, slots=True)
class SandboxBenchReport(BenchmarkReport):
    """Results by number of live sandboxes.

    Attributes:
        isolation: What kept them apart.
        machine: What it ran on.
    """

    isolation: str
    machine: Mapping[str, Any]
    samples: int
    results: Sequence[SandboxResult]

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each number of sandboxes."""
        shared = {
            "isolation": self.isolation,
            "samples": self.samples,
            "machine": dict(self.machine),
        }
        return [{**each.as_json(), **shared} for each in self.results]

    @property
    def bars(self) -> Sequence[Bar]:
        """Limits on the overhead of the service for a command of a second."""
        name = "overhead of a 1 s action, {} live"
        return [Bar(name.format(each.sandboxes), each.overhead_share, at_most=MOST_OVERHEAD) for each in self.results]

    def tables(self) -> Iterator[RenderableType]:
        """A row for each verb, a column for each number of sandboxes."""
        found = self.as_json()
        title = f"Sandboxes, {self.isolation}, {self.samples} samples"
        table = new_table(title, "p50 / p99", *(f">{each['sandboxes']} live" for each in found))
        for heading, figures in _ROWS:
            table.add_row(heading, *(" / ".join(f"{each[figure]:.3g}" for figure in figures) for each in found))
        yield table


def _share_beyond_command(samples: Sequence[float]) -> float:
    took_s = percentile(samples, 50)
    return (took_s - LONG_ACTION_S) / took_s
