"""Sends one request to the game (see game_server.py) and prints its answer: `python3 play.py REQUEST`."""

import socket
import sys


def main() -> int:
    """Returns exit code 2 if the game says that the request is not valid."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("game.sock")
        connection.sendall((sys.argv[1] + "\n").encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read().decode()
    sys.stdout.write(answer)
    return 2 if answer.startswith("invalid") else 0


sys.exit(main())
