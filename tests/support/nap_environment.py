"""A task set for no-op managers: each episode has a sandbox in name, steps that take time, and a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.client import Trajectory, Where
from callsheet.environments import Beginning, EpisodeScore, EpisodeTask, Message, Observation


@dataclass(frozen=True)
class NapTasks:
    """Attributes are options.

    Attributes:
        count: How many tasks.
        steps: Steps of each episode.
        step_s: How long each takes.
    """

    count: int = 40
    steps: int = 2
    step_s: float = 0.05

    def tasks(self) -> Sequence[EpisodeTask]:
        return [EpisodeTask(f"nap-{index}") for index in range(self.count)]

    def environment(self, task: EpisodeTask) -> NapEnvironment:
        return NapEnvironment(self.steps, self.step_s)


class NapEnvironment:
    def __init__(self, steps: int, step_s: float) -> None:
        self._left = steps
        self._step_s = step_s

    async def reset(self, trajectory: Trajectory) -> Beginning:
        (await trajectory.env_reset(label="nap")).unwrap()
        return Beginning([{"role": "user", "content": "Sleep."}])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        (await trajectory.env_step("sleep", label="nap", expected_duration_s=self._step_s)).unwrap()
        self._left -= 1
        return Observation([{"role": "user", "content": "Again."}], done=self._left == 0)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        scored = await trajectory.reward_tests("true", where=Where.IN_SANDBOX, service="noop", label="nap")
        return EpisodeScore(scored.unwrap().score)


class NappingPolicy:
    """Says nothing."""

    def __init__(self, task: EpisodeTask) -> None:
        del task

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        del trajectory, messages, tools
        return {"role": "assistant", "content": ""}

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        del trajectory
        return ()
