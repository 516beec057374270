"""Notes that a model reads by a tool: for Callsheet in sandboxes, and for TRL's own loop on this machine."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callsheet.client import SandboxFile, Trajectory, Where
from callsheet.environments import Beginning, EpisodeScore, EpisodeTask, Message, Observation

WORDS = ("red", "green", "blue", "black")
READ: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a note.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "Its name."}},
            "required": ["name"],
        },
        "return": {"type": "string", "description": "What it says."},
    },
}
NOT_THERE = "no such note"


def notes_of(number: int) -> dict[str, str]:
    """The notes of a task; every third one leads to another."""
    word = WORDS[number * 7 % len(WORDS)]
    return {f"a{number}": f"see b{number}", f"b{number}": word} if number % 3 == 0 else {f"a{number}": word}


def question_of(number: int) -> str:
    """What the model is asked."""
    return f"What is in a{number}?"


def answer_of(number: int) -> str:
    """What it is to answer."""
    return list(notes_of(number).values())[-1]


@dataclass(frozen=True)
class NoteTasks:
    """Tasks, each about notes of its own.

    Attributes:
        count: How many.
        wait_s: How long each look at a note takes.
        log: A file that each command writes a line to; empty for none.
    """

    count: int = 8
    wait_s: float = 0.0
    log: str = ""

    def tasks(self) -> Sequence[EpisodeTask]:
        return [EpisodeTask(f"note-{number}", {"number": number}) for number in range(self.count)]

    def environment(self, task: EpisodeTask) -> NoteEnvironment:
        return NoteEnvironment(task.data["number"], self.wait_s, self.log)


class NoteEnvironment:
    """Notes as files of a sandbox, which a command reads."""

    def __init__(self, number: int, wait_s: float = 0.0, log: str = "") -> None:
        self._number = number
        self._wait_s = wait_s
        self._log = log
        self._steps = 0

    async def reset(self, trajectory: Trajectory) -> Beginning:
        files = [SandboxFile(name, text.encode()) for name, text in notes_of(self._number).items()]
        (await trajectory.env_reset(files=files, label="notes-reset")).unwrap()
        return Beginning([{"role": "user", "content": question_of(self._number)}], [READ])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        calls = reply.get("tool_calls") or ()
        if not calls:
            said = shlex.quote(str(reply.get("content") or "").strip())
            (
                await trajectory.env_step(self._command(trajectory, f"printf %s {said} >answer"), label="notes-note")
            ).unwrap()
            return Observation(done=True)
        heard: list[Message] = []
        for call in calls:
            name = json.loads(call["function"]["arguments"]).get("name", "")
            command = self._command(
                trajectory, f"cat -- {shlex.quote(str(name))} 2>/dev/null || printf %s '{NOT_THERE}'"
            )
            result = (await trajectory.env_step(command, label="notes-read")).unwrap()
            heard.append(
                {"role": "tool", "tool_call_id": call["id"], "name": "read", "content": result.stdout.decode()}
            )
        return Observation(heard)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        check = ["grep", "-qx", answer_of(self._number), "answer"]
        result = (await trajectory.reward_tests(check, where=Where.IN_SANDBOX, label="notes-check")).unwrap()
        return EpisodeScore(result.score)

    def _command(self, trajectory: Trajectory, command: str) -> str:
        self._steps += 1
        if self._log:
            # One short line, so that writes of many commands do not mix.
            command = f"echo {trajectory.trajectory_id}#{self._steps} >>{self._log}; {command}"
        return f"sleep {self._wait_s}; {command}" if self._wait_s else command


class NotesForTrl:
    """The same notes as an `environment_factory` of TRL: its tools run one by one, on this machine."""

    def reset(self, **row: Any) -> None:
        """Takes the notes of a row."""
        self._number = int(row["number"])
        self._place = Path(tempfile.mkdtemp(prefix="notes-"))
        for name, text in notes_of(self._number).items():
            (self._place / name).write_text(text)

    def read(self, name: str) -> str:
        """
        Reads a note.

        Args:
            name: Its name.

        Returns:
            What it says.
        """
        done = subprocess.run(["cat", "--", name], cwd=self._place, capture_output=True, check=False, text=True)
        return done.stdout if done.returncode == 0 else NOT_THERE
