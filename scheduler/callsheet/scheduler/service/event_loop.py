"""An event loop that takes what gRPC has for it together."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any


class GatheringLoop(asyncio.SelectorEventLoop):
    """Goes round once for all that gRPC has.

    gRPC's thread writes a byte to a socket for each of its events. Its reader takes one byte and handles all events
    that are there, so that each byte left behind makes the loop go round once more, for nothing.
    """

    # Its type says which arguments a callback takes, which is passed on here as it comes.
    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Has gRPC's reader, of which each loop has one, gather."""
        if isinstance(fd, socket.socket) and type(callback) is partial and "PollerCompletionQueue" in repr(callback):
            super().add_reader(fd, self._take_all, fd.fileno(), partial(callback, *args))
        else:
            super().add_reader(fd, callback, *args)

    def _take_all(self, fd: int, take: Callable[[], Any]) -> None:
        (events,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        if events > 1:
            # One is left for the reader, which takes it after these events have been queued.
            os.read(fd, events - 1)
        take()
