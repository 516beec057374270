"""One trajectory, one action of each kind that `callsheet up` serves.

In one shell: .venv/bin/callsheet up
In another:   .venv/bin/python examples/hello.py
"""

from __future__ import annotations

import anyio
from callsheet.client import Client, Sampling


async def main() -> None:
    """Prints one outcome a line."""
    async with Client.from_env() as client, await client.open_job("hello") as job:
        async with job.trajectory("t-1") as trajectory:
            print(await trajectory.env_reset())
            print(await trajectory.generate([72, 105], Sampling(max_new_tokens=8)))
            print(await trajectory.env_step("echo hi | tee greeting; nproc"))
            print(await trajectory.reward_tests("grep -q hi greeting"))


if __name__ == "__main__":
    anyio.run(main)
