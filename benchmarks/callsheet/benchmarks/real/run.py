"""Runs the real benchmark from beginning to end."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.real.policies import POLICIES, RealPolicy
from callsheet.benchmarks.real.ray_asleep import run_ray_asleep
from callsheet.benchmarks.real.report import Pair, RealReport
from callsheet.benchmarks.real.rollouts import run_rollouts
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import asleep, real_scenario, without_resets
from callsheet.benchmarks.simulator.comparison.figures import Figures
from callsheet.benchmarks.simulator.comparison.load import load_of
from callsheet.benchmarks.simulator.comparison.runs import figures_of
from callsheet.benchmarks.simulator.policies import POLICIES as SIMULATED
from callsheet.benchmarks.simulator.policies.callsheet import Callsheet
from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.scenario import Generation, Scenario, Turn, Work
from callsheet.benchmarks.simulator.shell.overheads import OverheadModel
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.client import Client
from callsheet.deploy.choices import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.scheduler.core.model import ActionKind

Progress = Callable[[str], None]
_PROBES = 20


async def run_real(settings: RealSettings, progress: Progress = lambda _: None) -> RealReport:
    """Measures every policy on this machine, one after another, and simulates each.

    Args:
        settings: How much to run.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ValueError: There are not so many cores.
        ProcessFailedError: A process did not start (inside an exception group).
        RolloutFailedError: An action did not succeed (inside an exception group).
        RayRunFailedError: Ray failed.
    """
    began = time.perf_counter()
    usable = len(os.sched_getaffinity(0))
    cores = usable if settings.cores is None else settings.cores
    if not 1 <= cores <= usable:
        raise ValueError(f"cores: {cores} must be between 1 and {usable}, the cores that this process may use")
    progress("the smallest command, one at a time")
    start_up_cpu_s, overhead_s = await _probe(settings, cores)
    scenario = real_scenario(settings, cores, start_up_cpu_s)
    sleeping = asleep(scenario)
    pairs = {}
    for policy in POLICIES:
        given = sleeping if policy.sleeps else scenario
        progress(f"{policy.name}: {scenario.live} trajectories for real")
        measured = await _measure(policy, given, cores)
        pairs[policy.name] = Pair(measured, _simulate(policy.simulated, given, overhead_s))
    progress(f"ray: {scenario.live} trajectories for real, asleep")
    in_ray = (await run_ray_asleep(sleeping, cores)).figures(cores)
    pairs["ray"] = Pair(in_ray, _simulate("fixed_1_warm", without_resets(sleeping), 0.0))
    return RealReport(
        settings=settings,
        load=load_of(scenario),
        cores=cores,
        policies=pairs,
        start_up_cpu_s=start_up_cpu_s,
        overhead_s=overhead_s,
        machine=describe_machine(),
        wall_s=time.perf_counter() - began,
    )


async def _measure(policy: RealPolicy, scenario: Scenario, cores: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="callsheet-real-") as directory:
        stack_settings = StackSettings(
            data_dir=Path(directory), managers=(Role.SANDBOX,), cpus=cores, arguments=policy.arguments
        )
        async with local_stack(stack_settings) as stack, Client(stack.address) as client:
            measured = await run_rollouts(client, policy.name, scenario, policy.demands, sleep=policy.sleeps)
    return measured.figures(cores)


async def _probe(settings: RealSettings, cores: int) -> tuple[float, float]:
    """CPU seconds of a command that does nothing, and what its ACT has beyond them; medians, one at a time."""
    nothing = Turn(Generation(), (Work(ActionKind.ENV_STEP, "probe", in_sandbox=True),))
    drawn = real_scenario(replace(settings, trajectories=1), cores, 0.0)
    rollout = replace(drawn.rollouts[0], turns=(nothing,) * _PROBES)
    scenario = replace(drawn, rollouts=(rollout,), live=1)
    with tempfile.TemporaryDirectory(prefix="callsheet-real-") as directory:
        stack_settings = StackSettings(data_dir=Path(directory), managers=(Role.SANDBOX,), cpus=cores)
        async with local_stack(stack_settings) as stack, Client(stack.address) as client:
            measured = await run_rollouts(client, "probe", scenario, POLICIES[0].demands, sleep=False)
    steps = measured.actions[1:]
    cpu_s = median(step.cpu_s for step in steps)
    return cpu_s, max(median(step.act_s - step.cpu_s for step in steps), 0.0)


def _simulate(policy: str, scenario: Scenario, overhead_s: float) -> Figures:
    if policy != Callsheet.name:
        return figures_of(simulate(scenario, SIMULATED[policy]))
    overheads = OverheadModel(dispatch_s=overhead_s, commit_s=0.0, sandbox_s=0.0)

    def make(world: World) -> Callsheet:
        return Callsheet(world, CallsheetSettings(overheads=overheads))

    return figures_of(simulate(scenario, make))
