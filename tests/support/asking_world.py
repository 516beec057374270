"""An environment whose sandbox has no network of its own: an agent in it asks the model, and keeps what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.client import Command
from callsheet.environments import EpisodeTask
from callsheet.environments.sandbox_environment import SandboxEnvironment, SandboxWorld

AGENT = """python3 -I -c '
import json, os, urllib.request
body = {"model": "any", "messages": [{"role": "user", "content": os.environ["CALLSHEET_PROMPT"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request, timeout=60))
open("said", "w").write(answer["choices"][0]["message"]["content"])
'"""


@dataclass(frozen=True)
class AskingTasks:
    """Tasks that are solved once what the model said is in the file `said`.

    Attributes:
        wanted: What it is to say.
    """

    wanted: str = "It is fine."

    def tasks(self) -> Sequence[EpisodeTask]:
        return [EpisodeTask("ask-0"), EpisodeTask("ask-1")]

    def environment(self, task: EpisodeTask) -> SandboxEnvironment:
        return SandboxEnvironment(
            SandboxWorld(
                name=task.task_id,
                family="ask",
                messages=({"role": "user", "content": "How is it?"},),
                files=(),
                set_up=Command(("true",)),
                reward=Command(("grep", "-qx", self.wanted, "said")),
                reward_files=(),
            )
        )
