"""The task: sort a file by one of six commands. Its reward is a test in the sandbox.

The environment is Callsheet's, and runs on any trajectory: a real one, or one of local processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callsheet.client import Demand, FailureKind, SandboxFile, Timeouts, Trajectory, Where
from callsheet.environments import Beginning, EpisodeFailure, EpisodeScore, EpisodeTask, Message, Observation

from examples.training.work import Ending, Load

CONTENTS: Final = tuple(
    "".join(f"{word}\n" for word in words.split())
    for words in ("red blue blue green", "pear fig fig apple", "six four four one", "north east east south")
)
"""The files. No two commands make the same of any of them."""
QUESTION: Final = "Sort it."
WANTED: Final[Mapping[str, str]] = {
    QUESTION: "sort",
    "Turn it around.": "tac",
    "Count it.": "wc -l",
    "Number it.": "nl",
    "Drop repeats.": "uniq",
    "Check it.": "cksum",
}
"""What the model was primed with: questions, and commands that do it. It is trained on the first one."""
COMMANDS: Final = tuple(WANTED.values())
FILTER: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "filter",
        "description": "Sends the file through a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
        "return": {"type": "string", "description": "What it says."},
    },
}
UNKNOWN: Final = "no such command"
DONE: Final = "done"
CRASHED: Final = 97
"""Exit code of an environment that crashes."""


def script(command: str, load: Load, name: str) -> str:
    """Returns what a shell runs for a step: the environment's own work, and then the command.

    Args:
        command: What the model wants; only commands of the task run.
        load: How environments behave.
        name: Whose step it is.
    """
    work = load.work(name)
    if work.ending is Ending.HANG:
        return "exec sleep 3600"
    if work.ending is Ending.CRASH:
        return f"sleep {work.seconds:.3f}; exit {CRASHED}"
    act = f"{command} <in >out; echo {DONE}" if command in COMMANDS else f"echo {UNKNOWN}"
    return f"sleep {work.seconds:.3f}; {act}"


def check() -> str:
    """Returns the test: whether the file is as it was asked for."""
    return f"{WANTED[QUESTION]} <in | cmp -s - out"


def score(ran: bool, passed: float) -> float:
    """Returns what an episode was worth.

    Args:
        ran: Whether a command of the task ran: a fifth of the score.
        passed: The share of tests that passed: the rest.
    """
    return 0.2 * ran + 0.8 * passed


@dataclass(frozen=True)
class FilterTasks:
    """The tasks.

    Attributes:
        load: How environments behave.
    """

    load: Load

    def tasks(self) -> Sequence[EpisodeTask]:
        """One for each file."""
        return [EpisodeTask(f"sort-{number}", {"number": number}) for number in range(len(CONTENTS))]

    def environment(self, task: EpisodeTask) -> FilterEnvironment:
        """The environment of one episode."""
        return FilterEnvironment(task.data["number"], self.load)


class FilterEnvironment:
    """A sandbox with a file, and a tool that sends it through a command."""

    def __init__(self, number: int, load: Load) -> None:
        self._files = [SandboxFile("in", CONTENTS[number].encode())]
        self._load = load
        self._ran = False
        # Commands mostly wait, as those do that fetch or build elsewhere: many share a core.
        self._demand = Demand(cpu=0.1)
        self._limit = Timeouts(start_to_close_s=load.limit_s)

    async def reset(self, trajectory: Trajectory) -> Beginning:
        """Makes the sandbox and asks."""
        (await trajectory.env_reset(files=self._files, demand=self._demand, label="filter-reset")).unwrap()
        return Beginning([{"role": "user", "content": QUESTION}], [FILTER])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        """Runs the command. A reply without one ends the episode."""
        calls = reply.get("tool_calls") or ()
        if not calls:
            return Observation(done=True)
        command = str(json.loads(calls[0]["function"]["arguments"]).get("command", ""))
        act = script(command, self._load, trajectory.trajectory_id)
        outcome = await trajectory.env_step(act, demand=self._demand, timeouts=self._limit, label="filter-run")
        result = outcome.unwrap()
        if result.exit_code == CRASHED:
            EpisodeFailure(FailureKind.INFRA, "worker_lost", "the environment crashed").throw()
        heard = result.stdout.decode().strip()
        self._ran = heard != UNKNOWN
        return Observation([{"role": "tool", "tool_call_id": calls[0]["id"], "name": "filter", "content": heard}])

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Most of it is for a file that is as it was asked for."""
        tests = await trajectory.reward_tests(
            # With its own input again: a command may have emptied that one, too.
            check(),
            files=self._files,
            where=Where.IN_SANDBOX,
            demand=self._demand,
            label="filter-check",
        )
        return EpisodeScore(score(self._ran, tests.unwrap().score))
