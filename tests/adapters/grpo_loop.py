"""A plain GRPO loop: groups of siblings, rewards from a sandbox, advantages, and a new policy version per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev

from callsheet.client import (
    Client,
    GenerateResult,
    OnInfra,
    PriorityClass,
    Sampling,
    SandboxFile,
    Staleness,
    Trajectory,
    Where,
)

CHECK = b"import sys; sys.exit(0 if open('answer').read() else 1)\n"


@dataclass(frozen=True)
class Sibling:
    """One finished trajectory of a group."""

    generated: GenerateResult
    reward: float


@dataclass(frozen=True)
class Sample:
    """What an optimiser takes."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    policy_version: int
    advantage: float


async def rollout(trajectory: Trajectory, prompt: Sequence[int]) -> Sibling:
    """One sibling: an answer by the model, checked in its sandbox."""
    (await trajectory.env_reset()).unwrap()
    generated = (await trajectory.generate(prompt, Sampling(max_new_tokens=8))).unwrap()
    answer = SandboxFile("answer", bytes(token for token in generated.token_ids if token < 256))
    (await trajectory.env_step(["true"], files=[answer])).unwrap()
    reward = await trajectory.reward_tests(
        ["python3", "check.py"], files=[SandboxFile("check.py", CHECK)], where=Where.IN_SANDBOX
    )
    return Sibling(generated, reward.unwrap().score)


async def train(
    target: str, prompts: Sequence[Sequence[int]], *, steps: int, size: int, optimise: Callable[[list[Sample]], None]
) -> int:
    """Trains for some steps and returns how many samples the optimiser got."""
    samples = 0
    async with (
        await Client.connect(target) as client,
        await client.open_job(
            "grpo", share=2.0, priority_class=PriorityClass.TRAIN, staleness=Staleness(max_versions=2), grace_s=60
        ) as job,
    ):
        for step in range(1, steps + 1):
            batch: list[Sample] = []
            for number, prompt in enumerate(prompts):
                siblings: list[Sibling] = []
                name = f"step-{step}-prompt-{number}"
                async with job.group(name, size=size, quorum=size - 1, on_infra=OnInfra.REPLACE) as group:
                    group.start(partial(rollout, prompt=prompt))
                    siblings.extend([member.value async for member in group if member.value is not None])
                batch += advantages(siblings)
            optimise(batch)
            samples += len(batch)
            await job.publish(step)
        status = await job.status()
        assert status.policy_version == steps
    return samples


def advantages(siblings: Sequence[Sibling]) -> list[Sample]:
    """Each sibling's reward against its group's."""
    rewards = [sibling.reward for sibling in siblings]
    spread = pstdev(rewards) or 1.0
    return [
        Sample(
            sibling.generated.token_ids,
            sibling.generated.log_probs,
            min(span.version for span in sibling.generated.policy_versions),
            (sibling.reward - fmean(rewards)) / spread,
        )
        for sibling in siblings
    ]
