"""The same trajectories through Ray, with commands that sleep: a task per command, one logical core each, no resets.

Real CPU work would measure the operating system instead: Ray's cores are tickets, and nothing keeps a task on its own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from callsheet.benchmarks.measuring.ray_process import answer_with_ray, ask_ray_process
from callsheet.benchmarks.real.measuring import RealRun, Span, TimedAction
from callsheet.benchmarks.simulator.scenario import Scenario

_DEADLINE_S = 900.0
# Of each trajectory: pairs of a generation and the commands after it, in seconds.
Script = list[list[tuple[float, list[float]]]]


def script_of(scenario: Scenario) -> Script:
    """What each trajectory does, in seconds."""
    return [
        [(turn.generation.seconds, [work.alone_s() for work in turn.actions]) for turn in rollout.turns]
        for rollout in scenario.rollouts[: scenario.live]
    ]


async def run_ray_asleep(scenario: Scenario, cores: int) -> RealRun:
    """Runs the trajectories through Ray.

    Raises:
        RayRunFailedError: It failed, or took too long.
    """
    values = await ask_ray_process(__name__, cores, script_of(scenario), _DEADLINE_S)
    values["actions"] = [TimedAction(**action) for action in values["actions"]]
    values["held"] = [Span(*span) for span in values["held"]]
    return RealRun(**values)


async def _roll_out(script: Script, sleep: Any) -> RealRun:
    measured = RealRun()

    async def step(seconds: float) -> None:
        submitted = time.perf_counter()
        await sleep.remote(seconds)
        ended = time.perf_counter()
        act_s = ended - submitted
        measured.acting_s += act_s
        measured.actions.append(TimedAction(act_s, seconds, 0.0))
        measured.held.append(Span(ended - seconds, ended, 1))

    async def trajectory(turns: list[tuple[float, list[float]]]) -> None:
        started = time.perf_counter()
        for generation_s, commands in turns:
            await asyncio.sleep(generation_s)
            await asyncio.gather(*map(step, commands))
        measured.lives_s += time.perf_counter() - started

    began = time.perf_counter()
    await asyncio.gather(*map(trajectory, script))
    measured.step_s = time.perf_counter() - began
    return measured


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _run(ray: Any, script: Any) -> dict[str, Any]:
    sleep = ray.remote(num_cpus=1)(_sleep)
    # Workers start with the first tasks; that is no part of the step.
    ray.get([sleep.remote(0.0) for _ in range(4 * int(ray.cluster_resources()["CPU"]))])
    return asdict(asyncio.run(_roll_out(script, sleep)))


if __name__ == "__main__":
    answer_with_ray(_run)
