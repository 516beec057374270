"""A job as a trainer runs it, for a dashboard to show; a program that holds it until its standard input ends.

Its rollouts are real: a small model, sandboxes and rewards. Then one action runs that holds the sandboxes' cores, and
two are stuck behind it. A second job has what tries to be more than text. A line tells when all of it is there.
"""

from __future__ import annotations

import sys

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from callsheet.client import Client, Command, Demand, Job, Sampling, Trajectory
from callsheet.client.admin import AdminClient

from tests.support.waiting import until_so

JOB, OTHER_JOB = "training", 'other"><img src=x onerror="window.hacked=1">'
GROUP, MEMBERS = "prompt-7", 4
HOLDER, STUCK, STUCK_TOO = "holder", "stuck", "stuck-too"
HOSTILE = "<script>window.hacked=1</script>"
SCRIPT = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
READY = "shown"
LONG_LINE = 10_000_000
OUTPUTS = {
    "escapes": Command.python(r"print('\x1b[31mred\x1b[0m\x1b]0;window.hacked=1\x07\x1b[2J over')"),
    "html": Command.python(f"print({SCRIPT!r}, '</pre></div>', '&lt;kept&gt;')"),
    "long": Command.python(f"print('A' * {LONG_LINE})", max_output_bytes=2 * LONG_LINE),
    "broken": Command.python(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\xc3( \xed\xa0\x80 \xe2\x80\xae end')"),
}
_SAMPLING = Sampling(max_new_tokens=16, temperature=1.0)


async def _rollout(trajectory: Trajectory) -> float:
    (await trajectory.env_reset()).unwrap()
    context = list(b"Write a file named answer that contains 42.\n")
    for _ in range(2):
        turn = (await trajectory.generate(context, _SAMPLING)).unwrap()
        context += turn.token_ids
        step = (await trajectory.env_step("echo 42 > answer; cat answer")).unwrap()
        context += step.stdout
    return (await trajectory.reward_tests("grep -q 42 answer")).unwrap().score


async def _group(job: Job) -> None:
    async with job.group(GROUP, size=MEMBERS, quorum=MEMBERS) as group:
        group.start(_rollout)
        async for member in group:
            if member.error is not None:
                raise RuntimeError(f"{member.trajectory_id}: {member.error}")
    await job.publish(1)


async def _hostile(job: Job) -> None:
    async with job.trajectory(HOSTILE) as trajectory:
        (await trajectory.env_reset()).unwrap()
        for name, command in OUTPUTS.items():
            (await trajectory.env_step(command, action_id=name, label=SCRIPT)).unwrap()


async def _stuck_behind_another(job: Job, tasks: TaskGroup, cores: int) -> None:
    holder, *stuck = (job.trajectory(name) for name in (HOLDER, STUCK, STUCK_TOO))
    for each in (holder, *stuck):
        await each.open()
        (await each.env_reset()).unwrap()

    async def run(trajectory: Trajectory, command: str, name: str) -> None:
        await trajectory.env_step(command, action_id=name, label=name, demand=Demand(cpu=cores))

    tasks.start_soon(run, holder, "sleep 1000", HOLDER)
    await until_so(job.status, lambda it: it.actions.get("running") == 1, every_s=0.05)
    for each in stuck:
        tasks.start_soon(run, each, "true", each.trajectory_id)
    await until_so(job.status, lambda it: it.actions.get("queued") == len(stuck), every_s=0.05)


async def _free_cores(client: Client) -> int:
    async with AdminClient(client.target, client.options) as admin:
        (node,) = (await admin.status()).nodes
    return node.free["cpu"]


async def main() -> None:
    """Runs it all."""
    async with Client.from_env() as client, await client.open_job(JOB) as job, anyio.create_task_group() as tasks:
        # A reader may have closed it by the end.
        other = await client.open_job(OTHER_JOB)
        await _group(job)
        await _hostile(other)
        await _stuck_behind_another(job, tasks, await _free_cores(client))
        print(READY, flush=True)  # noqa: T201 - for whoever started it
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
