"""Runs the scenario's trajectories through a real Callsheet."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
_RESET: Final = Demand(Resource("memory", 64, hold=Hold.TRAJECTORY), cpu=1)
_STEP: Final = Demand(cpu=1)
_TIMEOUTS = Timeouts(schedule_to_start_s=_DEADLINE_S, start_to_close_s=_DEADLINE_S, schedule_to_close_s=_DEADLINE_S)
_MEMORY_MIB: Final = 64
_MEMORY: Final = Resource("memory", _MEMORY_MIB, hold=Hold.TRAJECTORY)
_ONE_CORE: Final = Demand(cpu=1)

_WHOLE_CORES: Final[Mapping[str, tuple[str, ...]]] = {
    Role.SCHEDULER: ("--planner", "first-come"),
    Role.SANDBOX: ("--share-cores", "reserved"),
}


# Arguments of the service's processes by policy. The simulator has policies of the same names.
POLICIES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "callsheet": {},
    "os_sharing": {Role.SANDBOX: ("--share-cores", "plain")},
}


class RolloutFailedError(Exception):
    """An action of the benchmark did not succeed, so that there is nothing to compare."""


async def run_rollouts(client: Client, job_id: str, scenario: Scenario) -> RealRun:
    """Runs all trajectories at once.

    Args:
        client: Connected to the scheduler.
        job_id: A new job's.
        scenario: What to run.

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
                tasks.start_soon(_Runner(job, rollout, measured).run)
    measured.step_s = time.perf_counter() - began
    await job.close()
    return measured


class _Runner:
    """One trajectory."""

    def __init__(self, job: Job, rollout: Rollout, measured: RealRun) -> None:
        self._job = job
        self._rollout = rollout
        self._measured = measured

    async def run(self) -> None:
        async with self._job.trajectory(self._rollout.name) as trajectory:
            await self._reset(trajectory)
            for turn in self._rollout.turns:
                await anyio.sleep(turn.generation.seconds)
                async with anyio.create_task_group() as tasks:
                    for work in turn.actions:
                        tasks.start_soon(self._step, trajectory, work)

    async def _reset(self, trajectory: Trajectory) -> None:
        """Makes the sandbox."""
        work = self._rollout.reset
        if work is None:
            raise ValueError(f"{self._rollout.name}: a real trajectory has a sandbox")
        submitted = time.perf_counter()
        outcome = await trajectory.env_reset(
            files=[_BURNER],
            demand=_RESET,
            label=work.label,
            task=self._rollout.task,
            timeouts=_TIMEOUTS,
        )
        waited = outcome.timeline.start_wait_s
        self._measured.start_waits_s.append(waited)
        self._record(work, outcome, time.perf_counter() - submitted - waited)

    async def _step(self, trajectory: Trajectory, work: Work) -> None:
        program = ("python3", "-S", _BURNER.path, f"{work.cpu_s:.4f}", f"{work.use:.4f}")
        submitted = time.perf_counter()
        outcome = await trajectory.env_step(
            Command(program),
            demand=_STEP,
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
        # Every command has one core, alone or shared.
        now = time.perf_counter()
        self._measured.held.append(Span(now - _ran_s(outcome.timeline), now, 1))


def _ran_s(timeline: Timeline) -> float:
    """How long the attempt was there, stalls included; by the scheduler's clock."""
    if timeline.started_at is None or timeline.ended_at is None:
        return 0.0
    return timeline.ended_at - timeline.started_at
