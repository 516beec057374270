"""64 trajectories of 10 steps at once, each of which counts its own steps in its sandbox.

In one shell: .venv/bin/callsheet up
In another:   .venv/bin/python examples/many_trajectories.py

Kill the scheduler with SIGKILL while it runs (`callsheet up` starts it again): no step is lost and none runs twice.
"""

from __future__ import annotations

import sys

import anyio
from callsheet.client import Client, Job

TRAJECTORIES = 64
STEPS = 10


async def rollout(job: Job, number: int) -> None:
    """One trajectory. Each step adds a line to a file and prints how many lines it has."""
    async with job.trajectory(f"t-{number}", deadline_s=600) as trajectory:
        (await trajectory.env_reset()).unwrap()
        for step in range(1, STEPS + 1):
            outcome = await trajectory.env_step("echo step >> steps; wc -l < steps")
            seen = int(outcome.unwrap().stdout)
            if seen != step:
                raise SystemExit(f"{trajectory.trajectory_id}: step {step} found {seen} steps")
            print(f"{trajectory.trajectory_id} step {step}", flush=True)


async def main() -> None:
    """Runs all trajectories at once."""
    async with Client.from_env() as client, await client.open_job("many-trajectories") as job:
        async with anyio.create_task_group() as tasks:
            for number in range(TRAJECTORIES):
                tasks.start_soon(rollout, job, number)
    print(f"{TRAJECTORIES * STEPS} steps, none lost, none twice", file=sys.stderr)


if __name__ == "__main__":
    anyio.run(main)
