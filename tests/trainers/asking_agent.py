"""An agent with a loop of its own, which asks the model from its sandbox and keeps what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.client import Command, GatewayAccess, Trajectory, Where
from callsheet.environments import EpisodeScore, EpisodeTask

from tests.trainers.notes import question_of

AGENT = """python3 -I -c '
import json, os, urllib.request

messages = []
for question in (os.environ["QUESTION"], "And then?"):
    messages.append({"role": "user", "content": question})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages, "temperature": 0.3, "max_tokens": 32}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
json.dump(messages, open("said", "w"))
'"""


@dataclass(frozen=True)
class AskingTasks:
    """Tasks whose agents ask twice.

    Attributes:
        count: How many.
        network: What their sandboxes reach; nothing where the manager isolates none.
    """

    count: int = 4
    network: str = "gateway"

    def tasks(self) -> Sequence[EpisodeTask]:
        return [EpisodeTask(f"ask-{number}", {"number": number}) for number in range(self.count)]

    def environment(self, task: EpisodeTask) -> AskingAgent:
        return AskingAgent(task.data["number"], self.network)


class AskingAgent:
    """An environment whose agent is a program in its sandbox. What it was told is the score: 1 for anything at all."""

    def __init__(self, number: int, network: str) -> None:
        self._number = number
        self._network = network

    async def reset(self, trajectory: Trajectory) -> None:
        (await trajectory.env_reset(network=[self._network] if self._network else [])).unwrap()

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        environment = {**access.environment(), "QUESTION": question_of(self._number)}
        done = (await trajectory.env_step(Command.shell(AGENT, environment=environment), label="agent")).unwrap()
        assert done.exit_code == 0, done.stderr.decode()

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        result = (await trajectory.reward_tests(["grep", "-q", "assistant", "said"], where=Where.IN_SANDBOX)).unwrap()
        return EpisodeScore(result.score)
