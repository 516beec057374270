"""A small environment for tests: the policy is to say a word, which a command of the sandbox checks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.client import Trajectory, Where
from callsheet.environments import Beginning, EpisodeScore, EpisodeTask, Message, Observation


@dataclass(frozen=True)
class WordTasks:
    """Words to be said.

    Attributes:
        count: How many tasks.
        turns: Replies after which an episode is done.
    """

    count: int = 2
    turns: int = 1

    def tasks(self) -> Sequence[EpisodeTask]:
        return [EpisodeTask(f"word-{index}", {"word": f"w{index}"}) for index in range(self.count)]

    def environment(self, task: EpisodeTask) -> WordEnvironment:
        return WordEnvironment(task.data["word"], self.turns)


class WordEnvironment:
    """Notes each reply in the sandbox; the last one is to be the word."""

    def __init__(self, word: str, turns: int) -> None:
        self._word = word
        self._left = turns

    async def reset(self, trajectory: Trajectory) -> Beginning:
        (await trajectory.env_reset(label="word-reset")).unwrap()
        return Beginning([{"role": "user", "content": f"Say {self._word}."}])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        said = shlex.quote(str(reply.get("content") or ""))
        result = (await trajectory.env_step(f"printf %s {said} >said; wc -c <said", label="word-note")).unwrap()
        self._left -= 1
        heard: Message = {"role": "user", "content": f"{result.stdout.decode().strip()} letters."}
        return Observation([heard], done=self._left == 0)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        check = ["grep", "-qx", self._word, "said"]
        result = (await trajectory.reward_tests(check, where=Where.IN_SANDBOX, label="word-check")).unwrap()
        return EpisodeScore(result.score, {"letters": float(len(self._word))})


class SayingPolicy:
    """Says the word that it was asked for."""

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        del trajectory, tools
        asked = str(messages[0]["content"])
        return {"role": "assistant", "content": asked.removeprefix("Say ").removesuffix(".")}

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        del trajectory
        return ()
