"""A `rollout_func` of local processes: the same episodes as with Callsheet, all of a batch at once.

Its trajectories need no scheduler: local processes, and the trainer's own model. They offer the same actions as
Callsheet's, so that the same episodes run on both.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from callsheet.client import (
    CommandResult,
    Failed,
    FailureKind,
    FinishReason,
    GenerateResult,
    Outcome,
    Reason,
    RewardResult,
    Sampling,
    SandboxFile,
    Succeeded,
    Timeouts,
    Trajectory,
)
from callsheet.environments import EpisodeTask, FailureRule, TaskSet
from callsheet.environments.episode import EpisodeRecord, run_episode
from callsheet.environments.seats import FilledSeat, trajectory_name
from callsheet.gateway.renderers.held_tokenizer import renderer_of
from callsheet.integrations.trl.policies import PolicyMaker
from callsheet.integrations.trl.rollout import seats_of
from callsheet.integrations.trl.rows import columns
from callsheet.integrations.trl.sampling import completion_tokens, sampling_of


class LocalRollout:
    """Pass it as `rollout_func`.

    Args:
        task_set: The tasks.
        max_replacements: The most episodes of a batch that are run again as their environment crashed.
        at_once: The most episodes at once.
    """

    def __init__(self, task_set: TaskSet, *, max_replacements: int, at_once: int = 64) -> None:
        self._task_set = task_set
        self._tasks = {task.task_id: task for task in task_set.tasks()}
        self._max_replacements = max_replacements
        self._at_once = at_once

    def policies(self, trainer: Any) -> Any:
        """Returns what makes the policy of each trajectory."""
        renderer = renderer_of(trainer.processing_class)
        return PolicyMaker(renderer, sampling_of(trainer.args), completion_tokens(trainer.args))

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Returns one completion for each prompt."""
        end_token = trainer.processing_class.eos_token_id
        filled = asyncio.run(self._fill(prompts, trainer))
        return columns(
            filled, FailureRule(), end_token=end_token, max_completion_tokens=completion_tokens(trainer.args)
        )

    async def _fill(self, prompts: Sequence[Any], trainer: Any) -> list[FilledSeat]:
        tasks = [self._tasks[prompt[-1]["content"]] for prompt in prompts]
        seats = list(seats_of(f"train/{trainer.state.global_step}.0/0", tasks))
        model = BatchedModel(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class.pad_token_id)
        policies, places, left = self.policies(trainer), asyncio.Semaphore(self._at_once), self._max_replacements

        async def fill(seat_id: str, task: EpisodeTask) -> FilledSeat:
            nonlocal left
            replaced = 0
            async with places:
                while True:
                    record = await self._episode(trajectory_name(seat_id, replaced), task, policies, model)
                    if record.failure is None or not record.failure.is_infra or left <= 0:
                        return FilledSeat(record, replaced)
                    left, replaced = left - 1, replaced + 1

        return await asyncio.gather(*(fill(seat.seat_id, seat.task) for seat in seats))

    async def _episode(self, name: str, task: EpisodeTask, policies: Any, model: BatchedModel) -> EpisodeRecord:
        local = LocalTrajectory(name, model)
        try:
            environment = self._task_set.environment(task)
            return await run_episode(cast(Trajectory, local), environment, task, policies(task))
        finally:
            local.close()


@dataclass(slots=True)
class Waiting:
    """A prompt that waits to be continued."""

    prompt: Sequence[int]
    sampling: Sampling
    reply: asyncio.Future[list[int]]


class BatchedModel:
    """Continues prompts by the trainer's model. Those that come while it computes are its next batch.

    Args:
        model: A model of transformers.
        pad_token: Fills shorter prompts.
    """

    def __init__(self, model: Any, pad_token: int) -> None:
        self._model = model
        self._pad_token = pad_token
        self._waiting: list[Waiting] = []
        self._is_busy = False

    async def continued(self, prompt: Sequence[int], sampling: Sampling) -> list[int]:
        """Returns the tokens that follow a prompt, the stop token included."""
        asked = Waiting(prompt, sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if not self._is_busy:
            self._is_busy = True
            try:
                # Those that are ready with this one come along.
                await asyncio.sleep(0)
                while self._waiting:
                    batch, self._waiting = self._waiting, []
                    replies = await asyncio.to_thread(self._generate, batch)
                    for each, reply in zip(batch, replies, strict=True):
                        each.reply.set_result(reply)
            finally:
                self._is_busy = False
        return await asked.reply

    def _generate(self, batch: Sequence[Waiting]) -> list[list[int]]:
        longest = max(len(each.prompt) for each in batch)
        pads = [[self._pad_token] * (longest - len(each.prompt)) for each in batch]
        ids = torch.tensor([[*pad, *each.prompt] for pad, each in zip(pads, batch, strict=True)])
        mask = torch.tensor([[0] * len(pad) + [1] * len(each.prompt) for pad, each in zip(pads, batch, strict=True)])
        sampling = batch[0].sampling
        stops = list(sampling.stop_token_ids)
        with torch.no_grad():
            found = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=sampling.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(each.sampling.max_new_tokens for each in batch),
                eos_token_id=stops,
                pad_token_id=self._pad_token,
            )
        return [
            until(row[longest:].tolist(), stops, each.sampling.max_new_tokens)
            for row, each in zip(found, batch, strict=True)
        ]


def until(tokens: list[int], stops: Sequence[int], most: int) -> list[int]:
    """Returns tokens up to the first that stops, that one included."""
    end = next((at for at, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[: min(end + 1, most)]


class LocalTrajectory:
    """One trajectory in a directory of its own.

    Args:
        trajectory_id: Its name.
        model: What continues its prompts.
    """

    waited_s = 0.0

    def __init__(self, trajectory_id: str, model: BatchedModel) -> None:
        self.trajectory_id = trajectory_id
        self._model = model
        self._place = Path(tempfile.mkdtemp(prefix="filters-"))

    def close(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self._place, ignore_errors=True)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **_: Any) -> Outcome[GenerateResult]:
        """Continues a prompt."""
        tokens = await self._model.continued(prompt, sampling)
        stopped = bool(tokens) and tokens[-1] in sampling.stop_token_ids
        # The trainer does not use log-probabilities of samples here.
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Succeeded(GenerateResult(tuple(tokens), (0.0,) * len(tokens), reason))

    async def env_reset(self, *, files: Iterable[SandboxFile] = (), **_: Any) -> Outcome[None]:
        """Writes the files."""
        for file in files:
            (self._place / file.path).write_bytes(file.content)
        return Succeeded(None)

    async def env_step(self, command: str, *, timeouts: Timeouts | None = None, **_: Any) -> Outcome[CommandResult]:
        """Runs a command until its time limit."""
        limit_s = None if timeouts is None else timeouts.start_to_close_s
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=self._place, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        try:
            async with asyncio.timeout(limit_s):
                stdout = (await process.communicate())[0]
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return Failed(kind=FailureKind.TIMEOUT, reason=Reason.START_TO_CLOSE, message=f"{limit_s:g} s are over")
        assert process.returncode is not None
        return Succeeded(CommandResult(process.returncode, stdout))

    async def reward_tests(self, command: str, *, files: Iterable[SandboxFile] = (), **_: Any) -> Outcome[RewardResult]:
        """Runs a test with its own files; 1 if it exits with 0."""
        await self.env_reset(files=files)
        result = (await self.env_step(command)).unwrap()
        return Succeeded(RewardResult(float(result.exit_code == 0)))
