"""Trajectories from a process of their own: `python -m tests.support.host_load ADDRESS JOB COUNT STEPS RESULT`.

Each appends to a file in its sandbox, a line a step, and reads it in the end: a step that ran twice or never shows
there. The process says ready once all have their sandbox. The result is a file of JSON: what became of each trajectory,
by its name.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import anyio
from callsheet.client import Client, Command, Failed, Job, NotSucceededError
from callsheet.deploy.child import ParentLink

DONE = "done"


class _Load:
    """Trajectories of one job.

    Attributes:
        became: What became of each that has ended.
    """

    def __init__(self, link: ParentLink, count: int, steps: int) -> None:
        self.became: dict[str, str] = {}
        self._link = link
        self._without_sandbox = self._count = count
        self._steps = steps

    async def run(self, address: str, job_id: str) -> None:
        """Runs all."""
        # Public names alone: an earlier release runs this, too.
        options = replace(Client.from_env(target=address).options, backoff_max_s=0.5)
        async with (
            Client(address, options) as client,
            await client.open_job(job_id) as job,
            anyio.create_task_group() as tasks,
        ):
            for number in range(self._count):
                tasks.start_soon(self._one, job, f"t{number}")

    async def _one(self, job: Job, name: str) -> None:
        async with job.trajectory(name) as trajectory:
            reset = await trajectory.env_reset()
            self._without_sandbox -= 1
            if not self._without_sandbox:
                self._link.report_ready()
            try:
                reset.unwrap()
                for number in range(self._steps):
                    (await trajectory.env_step(Command.shell(f"sleep 0.1; echo {number} >> lines"))).unwrap()
                read = (await trajectory.env_step(Command.shell("cat lines"))).unwrap().stdout.decode()
            except NotSucceededError as error:
                ended = error.outcome
                failed = isinstance(ended, Failed)
                self.became[name] = f"{ended.kind.name} {ended.reason}" if failed else str(ended)
                return
        expected = "".join(f"{number}\n" for number in range(self._steps))
        self.became[name] = DONE if read == expected else f"other lines: {read!r}"


def main() -> None:
    """Runs it."""
    link = ParentLink.adopt()
    address, job_id, count, steps, result = sys.argv[1:]
    load = _Load(link, int(count), int(steps))
    anyio.run(load.run, address, job_id)
    Path(result).write_text(json.dumps(load.became))


if __name__ == "__main__":
    main()
