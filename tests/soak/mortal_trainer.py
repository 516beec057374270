"""A trainer as a process: `python -m tests.soak.mortal_trainer ADDRESS JOB SIZE LEASE_S LOG [kill]`.

It takes batches until none comes any more, and notes each that was acknowledged. With "kill" it ends itself by SIGKILL
once it has its first batch.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
from callsheet.client import Client

_WAIT_S = 3.0


async def train(address: str, job_id: str, size: int, lease_s: float, log: Path, *, kill: bool) -> None:
    """Runs until there is no trajectory any more."""
    async with Client(address) as client:
        job = client.job(job_id)
        while True:
            batch = await job.take_batch(at_most=size, wait_s=_WAIT_S, lease_s=lease_s)
            if not batch:
                return
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            await batch.acknowledge()
            with log.open("a", encoding="utf-8") as file:
                file.writelines(f"{each.trajectory_id}\n" for each in batch.trajectories)


def main() -> None:
    """Runs a trainer."""
    address, job_id, size, lease_s, log, *kill = sys.argv[1:]
    anyio.run(lambda: train(address, job_id, int(size), float(lease_s), Path(log), kill=bool(kill)))


if __name__ == "__main__":
    main()
