"""An agent loop: eight siblings of one prompt (GRPO), of which the first six are enough.

In one shell: .venv/bin/callsheet up
In another:   .venv/bin/python examples/agent_loop.py
"""

from __future__ import annotations

import anyio
from callsheet.client import Client, PolicyError, Sampling, Trajectory, TrajectoryEnd

PROMPT = "Write a file named answer that contains 42.\n"
SAMPLING = Sampling(max_new_tokens=16, temperature=1.0)


async def rollout(trajectory: Trajectory) -> float:
    """One sibling: three turns of a model and a shell, then tests. Returns its reward."""
    (await trajectory.env_reset()).unwrap()
    context = list(PROMPT.encode())
    for _ in range(3):
        turn = (await trajectory.generate(context, SAMPLING)).unwrap()
        context += turn.token_ids
        try:
            # The demo's model is random: what it writes is echoed instead of run.
            step = await trajectory.env_step(["printf", "%s", repr(bytes(t for t in turn.token_ids if t < 256))])
            context += step.unwrap().stdout
        except PolicyError as error:  # the model's own fault: it may read about it
            context += str(error).encode()
    reward = await trajectory.reward_tests("grep -q 42 answer")
    return reward.unwrap().score  # unwrap raises per kind: InfraError is never a score of 0


async def main() -> None:
    """Runs one group and prints each member's end."""
    async with Client.from_env() as client, await client.open_job("agent-loop") as job:
        # A member lost to INFRA is replaced by a fresh trajectory and takes no seat.
        async with job.group("prompt-7", size=8, quorum=6) as group:
            group.start(rollout)
            async for member in group:
                if member.end is TrajectoryEnd.COMPLETED:
                    print(f"{member.trajectory_id}: reward {member.value}")
                else:
                    print(f"{member.trajectory_id}: {member.end.value}: {member.error}")
        await job.publish(1)


if __name__ == "__main__":
    anyio.run(main)
