"""The same trajectories through Ray, with commands that sleep: a task per command, one logical core each, no resets.

Runs in a process of its own, since Ray takes over a process that initialises it. Real CPU work would measure the
operating system instead: Ray's cores are tickets, and nothing keeps a task on its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from callsheet.benchmarks.real.holding import Span
from callsheet.benchmarks.real.measuring import ActionRecord, Measured
from callsheet.benchmarks.simulator.scenario import Scenario
from callsheet.deploy.child import ParentLink

_DEADLINE_S = 900.0
# Alone and quiet: no usage reports, no token check, no warnings about accelerators.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

# Of each trajectory: pairs of a generation and the commands after it, in seconds.
Script = list[list[tuple[float, list[float]]]]


class RayRunFailedError(Exception):
    """Ray gave no result; the message has its last words."""


def script_of(scenario: Scenario) -> Script:
    """What each trajectory does, in seconds."""
    return [
        [(turn.generation.seconds, [work.alone_s() for work in turn.actions]) for turn in rollout.turns]
        for rollout in scenario.rollouts[: scenario.live]
    ]


async def run_ray_asleep(scenario: Scenario, cores: int) -> Measured:
    """Runs the trajectories through Ray.

    Raises:
        RayRunFailedError: It failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="callsheet-ray-") as directory:
        given, result, log = (Path(directory) / name for name in ("script.json", "result.json", "log"))
        given.write_text(json.dumps(script_of(scenario)))
        command = [
            sys.executable,
            "-m",
            __name__,
            "--script",
            str(given),
            "--result",
            str(result),
            "--cores",
            f"{cores}",
        ]
        with log.open("wb") as output, anyio.move_on_after(_DEADLINE_S):
            await anyio.run_process(
                command, check=False, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **_ENVIRONMENT}
            )
        if not result.exists():
            words = log.read_text(errors="replace").strip()[-2000:]
            raise RayRunFailedError(f"Ray gave no result within {_DEADLINE_S:g} s; its last words:\n{words}")
        values = json.loads(result.read_text())
    values["actions"] = [ActionRecord(**action) for action in values["actions"]]
    values["held"] = [Span(*span) for span in values["held"]]
    return Measured(**values)


async def _roll_out(script: Script, sleep: Any) -> Measured:
    measured = Measured()

    async def step(seconds: float) -> None:
        submitted = time.perf_counter()
        await sleep.remote(seconds)
        ended = time.perf_counter()
        act_s = ended - submitted
        measured.acting_s += act_s
        measured.actions.append(ActionRecord(act_s, seconds, 0.0))
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


def main() -> None:
    """Entry point of Ray's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--script", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--cores", required=True, type=int)
    arguments = parser.parse_args()
    ParentLink.adopt()
    import ray

    # Not under TMPDIR: Ray puts sockets deep below it, and their paths are limited to 107 bytes.
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(num_cpus=arguments.cores, include_dashboard=False, log_to_driver=False, _temp_dir=directory)
    try:
        sleep = ray.remote(num_cpus=1)(_sleep)
        # Workers start with the first tasks; that is no part of the step.
        ray.get([sleep.remote(0.0) for _ in range(4 * arguments.cores)])
        measured = asyncio.run(_roll_out(json.loads(arguments.script.read_text()), sleep))
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
    arguments.result.write_text(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main()
