"""A `rollout_func` for TRL's GRPOTrainer: whole trajectories at once, each with a sandbox of its own.

TRL calls it with a batch of prompts, each repeated for its siblings, and wants one completion for each prompt.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import anyio
from callsheet.client import Client, InfraError, Job, Retry, Sampling, Timeouts, Trajectory, Where

Message = dict[str, str]


class Tokenizer(Protocol):
    """What TRL calls the processing class."""

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """Renders a conversation to token ids."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens."""

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""


class CallsheetRollouts:
    """Pass it as `rollout_func`; it pickles, and connects where it is called."""

    def __init__(self, target: str, *, turns: int = 2) -> None:
        self.target = target
        self.turns = turns

    def __call__(self, prompts: list[list[Message]], trainer: Any) -> dict[str, list[Any]]:
        """Returns what TRL asks for; a sample that INFRA took has the reward None and is left out of the loss."""
        return anyio.run(self._batch, prompts, trainer)

    async def _batch(self, prompts: list[list[Message]], trainer: Any) -> dict[str, list[Any]]:
        samples: list[dict[str, Any]] = [{} for _ in prompts]
        async with Client(self.target) as client, await client.open_job(f"trl-{uuid.uuid4().hex}") as job:
            async with anyio.create_task_group() as tasks:
                for index, prompt in enumerate(prompts):
                    tasks.start_soon(self._sample, job, index, prompt, trainer, samples)
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "sandbox_reward")
        return {key: [sample[key] for sample in samples] for key in keys}

    async def _sample(
        self, job: Job, index: int, prompt: list[Message], trainer: Any, samples: list[dict[str, Any]]
    ) -> None:
        tokenizer: Tokenizer = trainer.processing_class
        prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        sample = samples[index]
        sample.update(prompt_ids=prompt_ids, completion_ids=[], logprobs=[], env_mask=[], sandbox_reward=None)
        try:
            async with job.trajectory(f"sample-{index}", idle_timeout_s=600, deadline_s=1800) as trajectory:
                (await trajectory.env_reset(label="trl")).unwrap()
                for _ in range(self.turns):
                    await self._turn(trajectory, tokenizer, trainer.args, sample)
                reward = await trajectory.reward_tests(["test", "-s", "notes"], where=Where.IN_SANDBOX)
                sample["sandbox_reward"] = reward.unwrap().score
        except InfraError:
            sample["sandbox_reward"] = None

    async def _turn(self, trajectory: Trajectory, tokenizer: Tokenizer, args: Any, sample: dict[str, Any]) -> None:
        sampling = Sampling(max_new_tokens=args.max_completion_length // self.turns, temperature=args.temperature)
        turn = (await trajectory.generate(sample["prompt_ids"] + sample["completion_ids"], sampling)).unwrap()
        self._add(sample, turn.token_ids, turn.log_probs, 1)
        step = await trajectory.env_step(
            ["sh", "-c", 'printf "%s" "$0" | wc -c | tee -a notes', repr(tokenizer.decode(turn.token_ids))],
            timeouts=Timeouts(start_to_close_s=60),
            retry=Retry(max_attempts=2),
        )
        observation = tokenizer.encode(step.unwrap().stdout.decode())
        self._add(sample, observation, [0.0] * len(observation), 0)

    @staticmethod
    def _add(sample: dict[str, Any], token_ids: Sequence[int], log_probs: Sequence[float], mask: int) -> None:
        sample["completion_ids"] += token_ids
        sample["logprobs"] += log_probs
        sample["env_mask"] += [mask] * len(token_ids)
