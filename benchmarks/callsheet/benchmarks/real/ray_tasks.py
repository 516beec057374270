"""The same trajectories through Ray: a task per command, and no resets, as Ray's tasks have no sandboxes.

A task takes a tenth of a logical core, so that all run at once and the operating system shares the cores.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from callsheet.benchmarks.measuring.ray_process import answer_with_ray, ask_ray_process
from callsheet.benchmarks.real import burner
from callsheet.benchmarks.real.measuring import RealRun, Span, TimedAction
from callsheet.benchmarks.simulator.scenario import Scenario

_DEADLINE_S = 900.0
# So long are tasks that make Ray start its workers.
_WARM_UP_S = 3.0
_CORES_OF_A_TASK = 0.1
# Of a command: what it takes alone, its CPU seconds and the cores that it uses.
_Command = tuple[float, float, float]
# Of each trajectory: pairs of a generation, in seconds, and the commands after it.
_Script = list[list[tuple[float, list[_Command]]]]


def ray_is_here() -> bool:
    """Whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


async def run_ray(scenario: Scenario, cores: int) -> RealRun:
    """Runs the trajectories through Ray.

    Raises:
        RayRunFailedError: It failed, or took too long.
    """
    script = [
        [(turn.generation.seconds, [(work.alone_s(), work.cpu_s, work.use) for work in turn.actions]) for turn in turns]
        for turns in (rollout.turns for rollout in scenario.rollouts[: scenario.live])
    ]
    values = await ask_ray_process(__name__, cores, script, _DEADLINE_S)
    values["actions"] = [TimedAction(**action) for action in values["actions"]]
    values["held"] = [Span(*span) for span in values["held"]]
    return RealRun(**values)


async def _roll_out(script: _Script, run: Callable[..., Awaitable[tuple[float, float]]]) -> RealRun:
    measured = RealRun()

    async def step(alone_s: float, cpu_s: float, use: float) -> None:
        submitted = time.perf_counter()
        ran_s, used_s = await run(cpu_s, use)
        ended = time.perf_counter()
        act_s = ended - submitted
        measured.actions.append(TimedAction(act_s, alone_s, used_s))
        measured.held.append(Span(ended - ran_s, ended, 1))

    async def trajectory(turns: list[tuple[float, list[_Command]]]) -> None:
        for generation_s, commands in turns:
            await asyncio.sleep(generation_s)
            await asyncio.gather(*(step(*command) for command in commands))

    began = time.perf_counter()
    await asyncio.gather(*map(trajectory, script))
    measured.step_s = time.perf_counter() - began
    return measured


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _burn(cpu_s: float, use: float) -> tuple[float, float]:
    """Runs the command that sandboxes run; returns how long it was there, and its CPU seconds."""
    began = time.perf_counter()
    child = subprocess.Popen(["python3", "-S", burner.__file__, f"{cpu_s:.4f}", f"{use:.4f}"])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def _run(ray: Any, script: Any) -> dict[str, Any]:
    task = functools.partial(ray.remote, num_cpus=_CORES_OF_A_TASK)
    # Workers start with the first tasks; that is no part of the step.
    at_once = int(ray.cluster_resources()["CPU"] / _CORES_OF_A_TASK)
    ray.get([task()(_sleep).remote(_WARM_UP_S) for _ in range(min(at_once, 2 * len(script)))])
    return asdict(asyncio.run(_roll_out(script, task()(_burn).remote)))


if __name__ == "__main__":
    answer_with_ray(_run)
