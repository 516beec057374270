"""Tasks of a Callsheet task set as a taskset of verifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from callsheet.environments import EpisodeTask, load_task_set
from callsheet.integrations.verifiers.notes import note_of
from pydantic import Field


class CallsheetTaskData(vf.TaskData):
    """A row: where its task set is, and the task.

    Attributes:
        task_set: An entry point's name, or "module:name".
        task_set_options: Options of the task set.
        task_id: The task.
        task_data: What the task set needs to make its environment.
    """

    task_set: str
    task_set_options: dict[str, Any]
    task_id: str
    task_data: dict[str, Any]

    def episode_task(self) -> EpisodeTask:
        """Returns the task."""
        return EpisodeTask(self.task_id, self.task_data)


class CallsheetTask(vf.Task[CallsheetTaskData]):
    """A task whose environment scores it."""

    @vf.reward
    async def callsheet_score(self, trace: vf.Trace) -> float:
        """Returns the score of the episode, or the reward of its failure."""
        reward = note_of(trace).get("reward")
        if reward is None:
            raise ValueError("the trace has no episode: CallsheetTask is for agents with EpisodeHarness")
        return float(reward)


class CallsheetTasksetConfig(vf.TasksetConfig):
    """Choice of a task set.

    Attributes:
        task_set: An entry point's name, or "module:name".
        task_set_options: Options of the task set.
    """

    task_set: str = ""
    task_set_options: dict[str, Any] = Field(default_factory=dict)


class CallsheetTaskset(vf.Taskset[CallsheetTask, CallsheetTasksetConfig]):
    """All tasks of a task set. A subclass of a module of yours makes it a plugin of verifiers."""

    def load(self) -> Iterator[CallsheetTask]:
        """Yields the tasks."""
        of = self.config
        for task in load_task_set(of.task_set, **of.task_set_options).tasks():
            data = CallsheetTaskData(
                id=task.task_id,
                # The environment tells the policy what to do; verifiers wants a prompt nevertheless.
                prompt=task.task_id,
                task_set=of.task_set,
                task_set_options=of.task_set_options,
                task_id=task.task_id,
                task_data=dict(task.data),
            )
            yield CallsheetTask(data, of.task)
