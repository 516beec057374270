"""The job that opens the sandbox's way out: a listening socket on its own loopback, which it gives to its manager."""

from __future__ import annotations

from .slim import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAITING = 64


def listen(details: dict[str, Any], manager: int) -> None:
    """Sends a listening socket over another one."""
    # The process ends with the job, and its sockets with it.
    report = socket.socket(fileno=manager)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", details["port"]))
    listener.listen(WAITING)
    # Python 3.8 has no send_fds.
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, listener.fileno().to_bytes(4, "little"))
    report.sendmsg([b"listening"], [rights])
