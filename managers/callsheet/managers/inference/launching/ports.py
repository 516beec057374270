"""Ports for servers on this machine."""

from __future__ import annotations

import socket

from callsheet.managers.inference.launching.command import HOST


def free_port() -> int:
    """Returns a port that nobody has now. Whoever takes it first has it, so that each start asks for another."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
