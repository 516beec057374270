"""One game of FrozenLake as a background process of a sandbox.

Run as `python3 game_server.py SEED SIZE SUCCESS_RATE`. It returns once the game is set up and listening, and the game
lives on: it answers on the Unix socket `game.sock` of its working directory. Between actions the sandbox is frozen, and
the game with it.

A request is one line: "look", "status" or a move. The answer is text, closed by the end of the stream. "look" and moves
are answered with the state of the game ("playing", "won" or "lost"), the steps so far and the map, on which A is the
player; what is no move is answered with "invalid: ..." and changes nothing.
"""

import os
import socketserver
import sys
from typing import Any

# Staged for the sandbox; nothing outside it needs it.
import gymnasium  # type: ignore[import-not-found, unused-ignore]
from gymnasium.envs.toy_text.frozen_lake import (  # type: ignore[import-not-found, unused-ignore]
    generate_random_map,
)

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}
SOCKET = "game.sock"


class Game:
    """The game and how it stands."""

    def __init__(self, seed: int, size: int, success_rate: float) -> None:
        self.rows = generate_random_map(size=size, p=0.85, seed=seed)
        self.environment: Any = gymnasium.make("FrozenLake-v1", desc=self.rows, success_rate=success_rate)
        self.position, _ = self.environment.reset(seed=seed)
        self.steps = 0
        self.status = "playing"

    def answer(self, request: str) -> str:
        """Carries out one request."""
        if request == "status":
            return self.status + "\n"
        if request != "look":
            if request not in MOVES:
                return f"invalid: {request!r} is none of {', '.join(MOVES)}\n"
            if self.status != "playing":
                return f"invalid: the game is over ({self.status})\n"
            self.move(MOVES[request])
        return self.picture()

    def move(self, action: int) -> None:
        """Makes a move; the ice may turn it."""
        self.position, reward, is_over, is_cut_off, _ = self.environment.step(action)
        self.steps += 1
        if is_over or is_cut_off:
            self.status = "won" if reward > 0 else "lost"

    def picture(self) -> str:
        """Status, steps and map as text."""
        row, column = divmod(int(self.position), len(self.rows[0]))
        rows = [list(line) for line in self.rows]
        rows[row][column] = "A"
        return "\n".join([self.status, f"steps {self.steps}", *("".join(line) for line in rows)]) + "\n"


class Handler(socketserver.StreamRequestHandler):
    """One request."""

    def handle(self) -> None:
        """Answers it."""
        assert isinstance(self.server, Server)
        self.wfile.write(self.server.game.answer(self.rfile.readline(1000).decode(errors="replace").strip()).encode())


class Server(socketserver.UnixStreamServer):
    """Listens for requests, one at a time."""

    def __init__(self, game: Game) -> None:
        super().__init__(SOCKET, Handler)
        self.game = game


def main() -> None:
    """Sets the game up, shows it, and leaves a child behind that serves it."""
    game = Game(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    server = Server(game)
    sys.stdout.write(game.picture())
    sys.stdout.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    server.serve_forever()


main()
