"""A `rollout_func` of local processes: the same episodes as with Callsheet, all of a batch at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from callsheet.client import Trajectory
from callsheet.environments import EpisodeTask, FailureRule, TaskSet
from callsheet.environments.episode import EpisodeRecord, run_episode
from callsheet.environments.seats import FilledSeat, trajectory_name
from callsheet.gateway.renderers.held_tokenizer import renderer_of
from callsheet.integrations.trl.rollout import PolicyMaker, completion_tokens, sampling_of, seats_of
from callsheet.integrations.trl.rows import columns

from examples.training.local_trajectory import BatchedModel, LocalTrajectory


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
