"""Runs the sandbox benchmark from beginning to end.

Beside the sandboxes of one manager it measures the whole service with live ones: its addition to a command of a second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from callsheet.benchmarks.measuring.actions import NotMeasurableError, open_trajectories, succeeded
from callsheet.benchmarks.measuring.clock import Progress, timed
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import percentile, rounded
from callsheet.benchmarks.runner import Bar, BenchmarkReport, new_table
from callsheet.benchmarks.sandbox.measuring import SandboxMeasurements, measure
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
_VERBS = ("create", "reset", "first_exec", "exec", "step", "destroy", "score", "score_large", "score_many")


@dataclass(slots=True)
class ServiceSamples:
    """Seconds from submit to outcome, by the client's clock.

    Attributes:
        step: Of a command that does nothing.
        long: Of one that takes `LONG_ACTION_S`.
        plain: Of the same command as a plain process of this one, in turn with those.
    """

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
        trajectories = await _open(job, settings, *(str(number) for number in range(sandboxes)))
        for trajectory in itertools.islice(itertools.cycle(trajectories), settings.samples):
            samples.step.append(await _step_s(trajectory, Command.argv("true")))
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


async def _open(job: Job, settings: SandboxBenchSettings, *names: str) -> Sequence[Trajectory]:
    return await open_trajectories(job, names, settings.memory_mib, settings.concurrent)


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
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
        NotMeasurableError: An action or a command did not end well, or the memory is too small for so many sandboxes.
        BareToolError: The bare tool does not work here.
        ProcessFailedError: A process of the service did not start (inside an exception group).
    """
    _check_memory(settings, usable_memory_mib())
    machine = describe_machine()
    results = []
    with temporary_directory("callsheet-sandboxes-") as directory:
        # First what forks in this process, which gRPC's threads would disturb.
        measured = {}
        for count in settings.sandboxes:
            progress(f"{count} sandboxes: made, used, reset and steered")
            measured[count] = await measure(settings, count, Path(directory, f"manager-{count}"))
        for count in settings.sandboxes:
            progress(f"{count} sandboxes: through the whole service")
            service = await measure_service(settings, count, Path(directory, f"service-{count}"))
            results.append(SandboxResult(count, measured[count], service))
    return SandboxBenchReport(
        isolation=settings.isolation.value,
        capabilities=results[-1].measured.capabilities,
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
    measured: SandboxMeasurements
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
        """The figures as one object; null where something cannot be measured here."""
        samples, idle = self.measured.samples, self.measured.idle
        figures = {
            "sandboxes": self.sandboxes,
            **{
                f"{verb}_p{percent}_ms": _ms(getattr(samples, verb), percent) for verb in _VERBS for percent in (50, 99)
            },
            "bare_create_p50_ms": _ms(samples.bare_create, 50),
            "bare_exec_p50_ms": _ms(samples.bare_exec, 50),
            "switch_p50_us": 1e6 * percentile(samples.switch, 50),
            "switch_p99_us": 1e6 * percentile(samples.switch, 99),
            "freeze_p50_us": 1e6 * percentile(samples.freeze, 50),
            "idle_mb": _mb(idle.mib),
            "idle_processes_mb": _mb(idle.processes_mib),
            "idle_group_mb": _mb(idle.group_mib),
            "creates_per_s": self.sandboxes / self.measured.fill_s,
            "service_step_p50_ms": _ms(self.service.step, 50),
            "service_step_p99_ms": _ms(self.service.step, 99),
            "overhead_share": self.overhead_share,
            "plain_overhead_share": self.plain_overhead_share,
        }
        return rounded(figures, digits=4)


@dataclass(frozen=True, slots=True)
class SandboxBenchReport(BenchmarkReport):
    """Results by number of live sandboxes.

    Attributes:
        isolation: What kept them apart.
        capabilities: What the back end enforces here, and how.
        machine: What it ran on.
    """

    isolation: str
    capabilities: Mapping[str, str]
    machine: Mapping[str, Any]
    samples: int
    results: Sequence[SandboxResult]

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each number of sandboxes."""
        shared = {
            "isolation": self.isolation,
            "backend": dict(self.capabilities),
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
            name = heading.replace("bwrap", "a process") if self.isolation == "none" else heading
            shown = ([_number(each[figure]) for figure in figures if each[figure] is not None] for each in found)
            table.add_row(name, *(" / ".join(cells) or "-" for cells in shown))
        yield table
        yield "\n".join(f"{name}: {value}" for name, value in self.capabilities.items())


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _both(verb: str, unit: str = "ms") -> tuple[str, str]:
    return f"{verb}_p50_{unit}", f"{verb}_p99_{unit}"


_ROWS = (
    ("create, ms", _both("create")),
    ("  bwrap alone, ms", ("bare_create_p50_ms",)),
    ("env_reset, ms", _both("reset")),
    ("first command, ms", _both("first_exec")),
    ("command, ms", _both("exec")),
    ("  bwrap alone, ms", ("bare_exec_p50_ms",)),
    ("cores, thaw, command, freeze, ms", _both("step")),
    ("through the whole service, ms", _both("service_step")),
    ("destroy, ms", _both("destroy")),
    ("reward in an empty sandbox, ms", _both("score")),
    ("  in a copy of one with a file of 10 MB, ms", _both("score_large")),
    ("  in a copy of one with 1,000 of 10 kB, ms", _both("score_many")),
    ("change of cores, µs", _both("switch", "us")),
    ("freeze, µs", ("freeze_p50_us",)),
    ("memory of an idle one, MB", ("idle_mb",)),
    ("created a second", ("creates_per_s",)),
    ("overhead of a 1 s action", ("overhead_share",)),
    ("  of a plain process", ("plain_overhead_share",)),
)
"""Headings, and the figures in a row."""


def _share_beyond_command(samples: Sequence[float]) -> float:
    took_s = percentile(samples, 50)
    return (took_s - LONG_ACTION_S) / took_s


def _ms(seconds: Sequence[float], percent: float) -> float | None:
    return 1e3 * percentile(seconds, percent) if seconds else None


def _mb(mib: float | None) -> float | None:
    return None if mib is None else mib * (1 << 20) / 1e6
