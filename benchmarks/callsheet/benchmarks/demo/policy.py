"""Moves of the demo's agents, as generators that are pure but for the random stream they are given.

No weights of a language model can be shipped, so decisions are scripted, with mistakes drawn from a seed. A policy
yields its next turn and is sent what came of it; it ends when the agent is done.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from callsheet.client.words.commands import Command
from callsheet.environments.bash_replies import CommandReport
from callsheet.environments.games.frozen_lake import PLAY_PROGRAM, play

_MOST_LOOKS = 8
_HANGING_S = 1.0
_LOOKING = frozenset({"ls", "grep", "head", "sed"})

EDIT_PROGRAM = "tools/replace_line.py"

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision.

    Attributes:
        label: Class of work, for instance "look" or "edit".
        command: What to run.
        start_to_close_s: How long it may run.
    """

    label: str
    command: Command
    start_to_close_s: float = 30.0


Policy: TypeAlias = Generator[Decision, CommandReport, None]
"""Sent the observation of each turn; returns when the agent is done."""


@dataclass(frozen=True, slots=True)
class CodingAssignment:
    """Task of a coding agent.

    Attributes:
        project: Directory of the package, relative to the sandbox's working directory.
        path: The file with the bug, relative to the project.
        function: The function with the bug.
        line: The line with the bug, from 1.
        fixed_line: What the line should be.
        wrong_lines: What it could wrongly be taken to be; at least one.
        test: How to run the test that shows the bug.
    """

    project: str
    path: str
    function: str
    line: int
    fixed_line: str
    wrong_lines: Sequence[str]
    test: Command


def coding_policy(assignment: CodingAssignment, rng: random.Random) -> Policy:
    """Runs the failing test, looks around, edits, tests again, and sometimes gives up.

    Seeded mistakes: a program that does not exist, a command that never ends, up to three wrong edits, and giving up
    while the last edit is wrong.
    """
    yield Decision("test", assignment.test)
    for look in _looks(assignment, rng):
        yield Decision("look", look)
    if rng.random() < 0.25:
        yield Decision("slip", Command.argv("code-search", assignment.function, working_directory=assignment.project))
    if rng.random() < 0.15:
        yield Decision(
            "slip", Command.argv("tail", "-f", assignment.path, working_directory=assignment.project), _HANGING_S
        )
    while rng.random() < 0.4:
        yield _edit(assignment, rng.choice(assignment.wrong_lines))
        observation = yield Decision("test", assignment.test)
        if observation.exit_code == 0 or rng.random() < 0.25:
            return
    yield _edit(assignment, assignment.fixed_line)
    observation = yield Decision("test", assignment.test)
    if observation.exit_code != 0:
        yield Decision("look", _show(assignment, 4))


def _looks(assignment: CodingAssignment, rng: random.Random) -> list[Command]:
    """How an agent looks around; how often is heavy-tailed, as in traces of coding agents."""
    name = assignment.function.rpartition(".")[2]
    inside = assignment.project
    kinds = [
        Command.argv("ls", "-R", working_directory=inside),
        Command.argv("grep", "-rn", "--include=*.py", name, ".", working_directory=inside),
        Command.argv("head", "-n", "60", assignment.path, working_directory=inside),
        _show(assignment, 12),
    ]
    count = min(_MOST_LOOKS, 1 + int(rng.lognormvariate(0.2, 0.9)))
    return [*rng.choices(kinds, k=count - 1), _show(assignment, 6)]


def _show(assignment: CodingAssignment, around: int) -> Command:
    first, last = max(1, assignment.line - around), assignment.line + around
    return Command.argv("sed", "-n", f"{first},{last}p", assignment.path, working_directory=assignment.project)


def _edit(assignment: CodingAssignment, text: str) -> Decision:
    target = f"{assignment.project}/{assignment.path}"
    return Decision("edit", Command.argv("python3", "-I", "-S", EDIT_PROGRAM, target, str(assignment.line), text))


def shortest_move(rows: Sequence[str]) -> str | None:
    """The first move of a shortest way from A to G around the holes (H); None if there is no way or no player.

    Args:
        rows: The map, one character a field.
    """
    fields = {(r, c): field for r, row in enumerate(rows) for c, field in enumerate(row)}
    start = next((place for place, field in fields.items() if field == "A"), None)
    if start is None:
        return None
    waiting, seen = deque([(start, "")]), {start}
    while waiting:
        (row, column), first = waiting.popleft()
        if fields[row, column] == "G":
            return first or None
        for move, (down, right) in MOVES.items():
            place = (row + down, column + right)
            if fields.get(place, "H") != "H" and place not in seen:
                seen.add(place)
                waiting.append((place, first or move))
    return None


def game_policy(rng: random.Random, most_turns: int = 24) -> Policy:
    """Plays FrozenLake by shortest ways on the map it sees.

    Seeded mistakes: moves at random, and words that are no moves.
    """
    observation = yield _play("look")
    rows = _rows(observation)
    for _ in range(most_turns):
        if observation.output.startswith(("won", "lost")):
            return
        chance = rng.random()
        move = shortest_move(rows)
        if chance < 0.05:
            observation = yield _play(rng.choice(["jump", "north", "dig"]))
        elif chance < 0.15 or move is None:
            observation = yield _play(rng.choice(list(MOVES)))
        else:
            observation = yield _play(move)
        rows = _rows(observation) or rows


def _rows(observation: CommandReport) -> list[str]:
    """The map in an answer of the game, below its status and its steps; empty if the request was not valid."""
    return observation.output.split()[3:] if observation.exit_code == 0 else []


def _play(request: str) -> Decision:
    return Decision(_play_label(request), play(request))


def _play_label(request: str) -> str:
    return "move" if request in MOVES else "look" if request == "look" else "slip"


def label_of(command: Command) -> str:
    """Returns the label of a decision's command."""
    words = command.program
    if PLAY_PROGRAM in words:
        return _play_label(words[-1])
    if EDIT_PROGRAM in words:
        return "edit"
    if "pytest" in words:
        return "test"
    return "look" if words[0] in _LOOKING else "slip"
