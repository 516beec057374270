"""Runs the real benchmark from beginning to end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.real.rollouts import POLICIES, run_rollouts
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs, real_scenario, with_service
from callsheet.benchmarks.recording import write_trace
from callsheet.benchmarks.runner import BenchmarkReport, Column, cell, new_table
from callsheet.benchmarks.simulator.best_case import Load, load_of
from callsheet.benchmarks.simulator.comparison.figures import Figures
from callsheet.benchmarks.simulator.comparison.run import figures_of
from callsheet.benchmarks.simulator.policies import POLICIES as SIMULATED
from callsheet.benchmarks.simulator.policies.callsheet import CALLSHEET, callsheet_with
from callsheet.benchmarks.simulator.scenario import Generation, Scenario, Turn, Work
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings, OverheadModel
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.client import Client
from callsheet.client.admin import AdminClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.options.temporary_directories import temporary_directory
from callsheet.scheduler.core.words.model import ActionKind
from rich.console import RenderableType

_SPAN = "step_s"
_COLUMNS: tuple[Column, ...] = (
    ("ACT with start", "act_with_start_mean_s", ".3f"),
    ("ACT mean", "act_mean_s", ".3f"),
    ("p99", "act_p99_s", ".2f"),
    ("longest wait", "wait_max_s", ".1f"),
    ("start wait", "start_wait_mean_s", ".1f"),
    ("step", "step_s", ".1f"),
    ("held", "held", ".0%"),
    ("used", "used", ".0%"),
)

Progress = Callable[[str], None]
_PROBES = 20
# What actions have in the scenario already.
_NO_DELAYS = CallsheetSettings(overheads=OverheadModel(dispatch_s=0.0, commit_s=0.0, sandbox_s=0.0))


class ServiceCpu:
    """CPU time of the processes that serve, from now on: this one, and all below it that are there now.

    Sandboxes that come later are left out, and with them their commands: outcomes tell what those used. Nobody who
    serves waits for a sandbox that is killed as a whole. Sums over ended children hold some commands and lack others.
    """

    def __init__(self) -> None:
        this = psutil.Process()
        self._began = {process: _times(process) for process in (this, *this.children(recursive=True))}

    def own_s(self) -> float:
        """Seconds that these processes used themselves."""
        return sum(now[0] - began[0] for now, began in self._pairs())

    def with_helpers_s(self) -> float:
        """Seconds that they used themselves, and their ended children for them. Right only where no command ran."""
        return sum(sum(now) - sum(began) for now, began in self._pairs())

    def _pairs(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return [(_times(process), began) for process, began in self._began.items() if process.is_running()]


def _times(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds of a process, and of its ended children that were waited for."""
    times = process.cpu_times()
    return times.user + times.system, times.children_user + times.children_system


async def run_real(settings: RealSettings, progress: Progress = lambda _: None) -> RealReport:
    """Measures every policy on this machine, one after another, and simulates each.

    Args:
        settings: How much to run.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ValueError: There are not so many cores.
        ProcessFailedError: A process did not start (inside an exception group).
        RolloutFailedError: An action did not succeed (inside an exception group).
    """
    began = time.perf_counter()
    usable = len(os.sched_getaffinity(0))
    cores = usable if settings.cores is None else settings.cores
    if not 1 <= cores <= usable:
        raise ValueError(f"cores: {cores} must be between 1 and {usable}, the cores that this process may use")
    progress("the smallest command, one at a time")
    costs = await _probe(settings, cores)
    scenario = real_scenario(settings, cores, costs)
    pairs = {}
    for policy in POLICIES:
        progress(f"{policy}: {scenario.live} trajectories for real")
        pairs[policy] = await _compare(
            policy, scenario, costs, cores, settings.trace if policy == "callsheet" else None
        )
    return RealReport(
        settings=settings,
        load=load_of(scenario),
        cores=cores,
        policies=pairs,
        costs=costs,
        machine=describe_machine(),
        wall_s=time.perf_counter() - began,
    )


async def _compare(policy: str, scenario: Scenario, costs: Costs, cores: int, trace: Path | None = None) -> Pair:
    """Measures a policy, then simulates it with the CPU that the service was seen to use for an action.

    With a `trace` what was measured is recorded there.
    """
    with temporary_directory("callsheet-real-") as directory:
        stack_settings = StackSettings(
            data_dir=directory, managers=(Role.SANDBOX,), cpus=cores, arguments=POLICIES[policy]
        )
        async with local_stack(stack_settings) as stack, Client(stack.address) as client:
            service = ServiceCpu()
            measured = await run_rollouts(client, policy, scenario)
            service_cpu_s = service.own_s() / len(measured.actions)
            if trace is not None:
                async with AdminClient(stack.address) as admin:
                    await write_trace(admin, policy, trace)
    simulated = _simulate(policy, with_service(scenario, costs, service_cpu_s))
    return Pair(measured.figures(cores), simulated, service_cpu_s)


async def _probe(settings: RealSettings, cores: int) -> Costs:
    """Makes sandboxes, one at a time, and runs commands that do nothing in the last."""
    nothing = Turn(Generation(), (Work(ActionKind.ENV_STEP, "probe", in_sandbox=True),))
    drawn = real_scenario(replace(settings, trajectories=1), cores, Costs())
    bare = replace(drawn, rollouts=(replace(drawn.rollouts[0], turns=()),), live=1)
    acting = replace(bare, rollouts=(replace(bare.rollouts[0], turns=(nothing,) * _PROBES),))
    with temporary_directory("callsheet-real-") as directory:
        stack_settings = StackSettings(data_dir=directory, managers=(Role.SANDBOX,), cpus=cores)
        async with local_stack(stack_settings) as stack, Client(stack.address) as client:
            service = ServiceCpu()
            for number in range(_PROBES):
                await run_rollouts(client, f"reset-{number}", bare)
            reset_cpu_s = service.with_helpers_s() / _PROBES
            measured = await run_rollouts(client, "probe", acting)
    steps = measured.actions[1:]
    return Costs(
        start_up_cpu_s=median(step.cpu_s for step in steps),
        overhead_s=max(median(step.act_s - step.cpu_s for step in steps), 0.0),
        reset_cpu_s=reset_cpu_s,
    )


def _simulate(policy: str, scenario: Scenario) -> Figures:
    factory = callsheet_with(_NO_DELAYS) if policy == CALLSHEET.name else SIMULATED[policy]
    return figures_of(simulate(scenario, factory))


@dataclass(frozen=True, slots=True)
class Pair:
    """A policy's figures, measured and simulated, and CPU seconds that the service used for a command."""

    measured: Figures
    simulated: Figures
    service_cpu_s: float


@dataclass(frozen=True, slots=True)
class RealReport(BenchmarkReport):
    """One run of `callsheet bench real`.

    Attributes:
        costs: Of this machine; what is simulated has them, too.
    """

    settings: RealSettings
    load: Load
    cores: int
    policies: Mapping[str, Pair]
    costs: Costs
    machine: Mapping[str, Any]
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object; a policy's own figures are the measured ones."""
        return {
            "workload": "real",
            "mode": "oneshot",
            "rho": significant(self.load.rho),
            "cores": self.cores,
            "trajectories": self.settings.trajectories,
            "seed": self.settings.seed,
            "policies": {
                name: {
                    **pair.measured.as_json(_SPAN),
                    "measured": pair.measured.as_json(_SPAN),
                    "simulated": pair.simulated.as_json(_SPAN),
                    "service_cpu_s": significant(pair.service_cpu_s),
                }
                for name, pair in self.policies.items()
            },
            **rounded(asdict(self.costs)),
            "machine": dict(self.machine),
            "wall_s": significant(self.wall_s),
        }

    def tables(self) -> Iterator[RenderableType]:
        """Every figure measured, and the simulator's prediction after it."""
        settings, costs = self.settings, self.costs
        title = (
            f"{settings.trajectories} trajectories on {self.cores} cores, rho {self.load.rho:.2f}, "
            f"seed {settings.seed}: measured (simulated), in s"
        )
        table = new_table(title, "policy", *(f">{heading}" for heading, _, _ in _COLUMNS), ">service's CPU a command")
        for name, pair in self.policies.items():
            cells = [
                f"{cell(getattr(pair.measured, figure), form)} ({cell(getattr(pair.simulated, figure), form)})"
                for _, figure, form in _COLUMNS
            ]
            table.add_row(
                name, *cells, f"{pair.service_cpu_s * 1000:.0f} ms", style="bold" if name == "callsheet" else None
            )
        yield table
        yield (
            f"The smallest command takes {costs.start_up_cpu_s * 1000:.0f} ms of CPU, and through the service "
            f"{costs.overhead_s * 1000:.0f} ms more. A sandbox takes the service {costs.reset_cpu_s * 1000:.0f} ms of "
            f"CPU. {self.wall_s:.0f} s in all."
        )
