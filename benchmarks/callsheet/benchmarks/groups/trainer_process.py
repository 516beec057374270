"""A trainer as a process: `python -m callsheet.benchmarks.groups.trainer_process ADDRESS JOB SIZE LEASE_S LOG [kill]`.

It takes batches until none comes any more, and notes each before and after its acknowledgement. With "kill" it ends
itself by SIGKILL between taking its first batch and acknowledging it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import anyio
from callsheet.client import Client

WAIT_S = 3.0


async def train(address: str, job_id: str, size: int, lease_s: float, log: Path, *, kill: bool) -> None:
    """Runs until there are too few trajectories for a batch of one."""
    async with Client(address) as client:
        job = client.job(job_id)
        while True:
            batch = await job.take_batch(at_most=size, wait_s=WAIT_S, lease_s=lease_s)
            if not batch:
                return
            ids = [each.trajectory_id for each in batch.trajectories]
            note(log, {"taken": ids})
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            await batch.acknowledge()
            note(log, {"acknowledged": ids})


def note(log: Path, line: dict[str, list[str]]) -> None:
    """Adds a line to the log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    """Runs a trainer."""
    address, job_id, size, lease_s, log, *kill = sys.argv[1:]
    anyio.run(lambda: train(address, job_id, int(size), float(lease_s), Path(log), kill=bool(kill)))


if __name__ == "__main__":
    main()
