"""Runs the scenario's trajectories through a real Callsheet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
from callsheet.benchmarks.real import burner
from callsheet.benchmarks.real.measuring import RealRun, Span, TimedAction
from callsheet.benchmarks.simulator.scenario import Rollout, Scenario, Work
from callsheet.client import (
    Client,
    Command,
    Demand,
    Hold,
    Job,
    Outcome,
    SandboxFile,
    Succeeded,
    Timeline,
    Timeouts,
    Trajectory,
)
from callsheet.client.words.options import Resource
from callsheet.deploy.roles import Role

_BURNER: Final = SandboxFile("burner.py", Path(burner.__file__).read_bytes())
_DEADLINE_S = 900.0
_TIMEOUTS = Timeouts(schedule_to_start_s=_DEADLINE_S, start_to_close_s=_DEADLINE_S, schedule_to_close_s=_DEADLINE_S)
_MEMORY_MIB: Final = 64
_MEMORY: Final = Resource("memory", _MEMORY_MIB, hold=Hold.TRAJECTORY)
_ONE_CORE: Final = Demand(cpu=1)

_WHOLE_CORES: Final[Mapping[str, tuple[str, ...]]] = {
    Role.SCHEDULER: ("--planner", "first-come"),
    Role.SANDBOX: ("--share-cores", "reserved"),
}


class RolloutFailedError(Exception):
    """An action of the benchmark did not succeed, so that there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Demands of a policy's actions.

    Attributes:
        reset: Of env_reset.
        step: Of commands.
        reserves: Cores that a trajectory keeps from its env_reset to its end.
    """

    reset: Demand
    step: Demand
    reserves: int = 0


async def run_rollouts(client: Client, job_id: str, scenario: Scenario, demands: Demands, *, sleep: bool) -> RealRun:
    """Runs all trajectories at once.

    Args:
        client: Connected to the scheduler.
        job_id: A new job's.
        scenario: What to run.
        demands: The policy's.
        sleep: Whether commands sleep for as long as they would take alone.

    Raises:
        RolloutFailedError: An action did not succeed (inside an exception group).
        CallsheetError: The scheduler refused something, or cannot be reached (inside an exception group).
    """
    measured = RealRun()
    job = await client.open_job(job_id)
    began = time.perf_counter()
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for rollout in scenario.rollouts[: scenario.live]:
                tasks.start_soon(_Runner(job, rollout, demands, measured, sleep=sleep).run)
    measured.step_s = time.perf_counter() - began
    await job.close()
    return measured


class _Runner:
    """One trajectory."""

    def __init__(self, job: Job, rollout: Rollout, demands: Demands, measured: RealRun, *, sleep: bool) -> None:
        self._job = job
        self._rollout = rollout
        self._demands = demands
        self._measured = measured
        self._sleep = sleep

    async def run(self) -> None:
        async with self._job.trajectory(self._rollout.name) as trajectory:
            began = await self._reset(trajectory)
            for turn in self._rollout.turns:
                await anyio.sleep(turn.generation.seconds)
                async with anyio.create_task_group() as tasks:
                    for work in turn.actions:
                        tasks.start_soon(self._step, trajectory, work)
        if self._demands.reserves:
            self._measured.held.append(Span(began, time.perf_counter(), self._demands.reserves))

    async def _reset(self, trajectory: Trajectory) -> float:
        """Makes the sandbox; returns when the trajectory began."""
        work = self._rollout.reset
        if work is None:
            raise ValueError(f"{self._rollout.name}: a real trajectory has a sandbox")
        submitted = time.perf_counter()
        outcome = await trajectory.env_reset(
            files=[_BURNER],
            demand=self._demands.reset,
            label=work.label,
            task=self._rollout.task,
            timeouts=_TIMEOUTS,
        )
        waited = outcome.timeline.queue_s if self._demands.reserves else outcome.timeline.start_wait_s
        self._measured.start_waits_s.append(waited)
        self._record(work, outcome, time.perf_counter() - submitted - waited)
        return submitted + waited

    async def _step(self, trajectory: Trajectory, work: Work) -> None:
        burn = ("python3", "-S", _BURNER.path, f"{work.cpu_s:.4f}", f"{work.use:.4f}")
        program = ("sleep", f"{work.alone_s():.4f}") if self._sleep else burn
        submitted = time.perf_counter()
        outcome = await trajectory.env_step(
            Command(program),
            demand=self._demands.step,
            label=work.label,
            task=self._rollout.task,
            timeouts=_TIMEOUTS,
        )
        if isinstance(outcome, Succeeded) and outcome.value.exit_code != 0:
            raise RolloutFailedError(
                f"{program} exited with {outcome.value.exit_code}: {outcome.value.stderr[-500:]!r}"
            )
        self._record(work, outcome, time.perf_counter() - submitted)

    def _record(self, work: Work, outcome: Outcome[Any], act_s: float) -> None:
        if not isinstance(outcome, Succeeded):
            raise RolloutFailedError(f"{work.label} of {self._rollout.name} did not succeed: {outcome}")
        self._measured.actions.append(TimedAction(act_s, work.alone_s(), outcome.usage.cpu_s))
        if not self._demands.reserves:
            # Every command has one core, alone or shared.
            now = time.perf_counter()
            self._measured.held.append(Span(now - _ran_s(outcome.timeline), now, 1))


def _ran_s(timeline: Timeline) -> float:
    """How long the attempt was there, stalls included; by the scheduler's clock."""
    if timeline.started_at is None or timeline.ended_at is None:
        return 0.0
    return timeline.ended_at - timeline.started_at


@dataclass(frozen=True, slots=True)
class RealPolicy:
    """One policy.

    Attributes:
        simulated: The simulator's policy of the same kind; sandboxes are there before their commands, so pods are warm.
        arguments: Command line arguments of the service's processes.
        sleeps: Whether its commands sleep instead of using the CPU, for the comparison with Ray.
    """

    name: str
    simulated: str
    demands: Demands
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sleeps: bool = False


_SHARED: Final = Demands(reset=Demand(_MEMORY, cpu=1), step=_ONE_CORE)

POLICIES: Final = (
    RealPolicy("callsheet", "callsheet", _SHARED),
    RealPolicy(
        "reserve_1",
        "reserve_1",
        Demands(reset=Demand(_MEMORY, Resource("cpu", 1, hold=Hold.TRAJECTORY)), step=Demand(), reserves=1),
        _WHOLE_CORES,
    ),
    RealPolicy("fixed_1", "fixed_1_warm", _SHARED, _WHOLE_CORES),
    RealPolicy("os_sharing", "os_sharing", _SHARED, {str(Role.SANDBOX): ("--share-cores", "plain")}),
    RealPolicy("callsheet_asleep", "callsheet", _SHARED, sleeps=True),
)
"""Policies that run through the service. Ray runs beside them, asleep as well."""
