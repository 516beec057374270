"""FrozenLake of gymnasium, in a process that lives in the sandbox and is frozen between actions."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from callsheet.client import BackgroundProcesses, Command, SandboxFile, Where
from callsheet.environments import games
from callsheet.environments.bash_replies import (
    AskedCall,
    BadCall,
    SandboxCommand,
    Wanted,
    calls_of,
    first_wanted,
)
from callsheet.environments.environment import EpisodeTask
from callsheet.environments.sandbox_environment import SandboxEnvironment, SandboxWorld
from callsheet.gateway.chat import Message, Tool

GAME_REQUIREMENTS: Final = ("gymnasium==1.2.1", "numpy>=1.26,<3")
"""Packages that the game needs in the sandbox."""
PLAY_PROGRAM: Final = "play.py"
MOVE: Final = "move"
DIRECTIONS: Final = ("left", "down", "right", "up")
_SERVER_PROGRAM: Final = "game_server.py"
_CHECK_PROGRAM: Final = "check_game.py"
_SUCCESS_RATE: Final = "0.85"
_SIZES: Final = (4, 4, 5, 6)
_LONGEST_REQUEST: Final = 100
_MOVE_TIMEOUT_S: Final = 30.0
_WORD: Final = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b", re.IGNORECASE)
_RULES: Final = "You are A on a frozen lake. Reach G, keep out of the holes H. The ice is slippery.\n"
_HOW: Final = "Each reply is one move: call the tool move, or end your reply with left, down, right or up.\n"
_MOVE_TOOL: Final[Tool] = {
    "type": "function",
    "function": {
        "name": MOVE,
        "description": "Makes one move; the ice may turn it.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": list(DIRECTIONS)}},
            "required": ["direction"],
        },
    },
}


@dataclass(frozen=True)
class FrozenLakeTasks:
    """Games on random maps. Sandboxes need Python with gymnasium: by `--stage`, or in an image.

    Attributes:
        count: How many games.
        seed: Of all maps.
        image: The sandbox's root file system; empty takes the manager's.
    """

    count: int = 100
    seed: int = 0
    image: str = ""

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns the games."""
        rng = random.Random(f"frozen-lake {self.seed}")
        return [EpisodeTask(f"frozen-lake/{index}", {"seed": rng.getrandbits(32)}) for index in range(self.count)]

    def environment(self, task: EpisodeTask) -> SandboxEnvironment:
        """Returns the environment of a game."""
        return SandboxEnvironment(frozen_lake_world(task.data["seed"], image=self.image))


def frozen_lake_world(seed: int, *, image: str = "") -> SandboxWorld:
    """Returns the world of a game; the seed draws its map and how the ice turns moves."""
    size = random.Random(seed).choice(_SIZES)
    server_seed = seed % 10_000
    return SandboxWorld(
        name=f"frozen-lake/{size}/{server_seed}",
        family="game",
        messages=({"role": "user", "content": _RULES + _HOW},),
        files=(
            SandboxFile(_SERVER_PROGRAM, _program(_SERVER_PROGRAM)),
            SandboxFile(PLAY_PROGRAM, _program(PLAY_PROGRAM)),
        ),
        set_up=Command.argv(
            *("python3", "-B", _SERVER_PROGRAM, str(server_seed), str(size), _SUCCESS_RATE),
            # A game needs no pool of threads for linear algebra, and the memory of one would count.
            environment={"OPENBLAS_NUM_THREADS": "1"},
        ),
        reward=Command.argv("python3", "-I", "-S", _CHECK_PROGRAM),
        reward_files=(SandboxFile(_CHECK_PROGRAM, _program(_CHECK_PROGRAM)),),
        # The reward asks the game, which the set-up began. A policy runs nothing beside it: a move is all it can do.
        where=Where.IN_SANDBOX,
        background=BackgroundProcesses.RUN,
        image=image,
        tools=(_MOVE_TOOL,),
        wanted=moves_wanted,
        is_over=lambda output: output.startswith(("won", "lost")),
    )


def moves_wanted(reply: Message) -> Wanted:
    """Returns the moves of a reply: those of its calls, else the last direction that its text names."""
    calls = calls_of(reply)
    if calls:
        return first_wanted(map(_of_call, calls))
    named = _WORD.findall(str(reply.get("content") or ""))
    if not named:
        return [BadCall(f"invalid: say one of {', '.join(DIRECTIONS)}\n", "")]
    return [SandboxCommand(play(named[-1].lower()), _MOVE_TIMEOUT_S)]


def play(request: str) -> Command:
    """Returns the command that sends one request to the game."""
    return Command.argv("python3", "-I", "-S", PLAY_PROGRAM, request)


def _of_call(call: AskedCall) -> SandboxCommand | BadCall:
    direction = (call.arguments or {}).get("direction")
    if call.name != MOVE or not isinstance(direction, str) or not 0 < len(direction) <= _LONGEST_REQUEST:
        return BadCall(f"invalid: call {MOVE} with a direction, one of {', '.join(DIRECTIONS)}\n", call.call_id)
    return SandboxCommand(play(direction), _MOVE_TIMEOUT_S, call.call_id)


def _program(name: str) -> bytes:
    return resources.files(games).joinpath("sandbox_files").joinpath(name).read_bytes()
