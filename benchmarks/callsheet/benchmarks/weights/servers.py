"""Servers of engines that the benchmark starts itself, so that it can kill them for real."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

_END_S: Final = 20.0
LOOPBACK: Final = "127.0.0.1"


class EngineServer:
    """A server at a port that stays the same over its starts."""

    def __init__(self, command: str, log_path: Path) -> None:
        """Chooses a free port.

        Args:
            command: Its command line; {port} stands for the port.
            log_path: Takes what it says.
        """
        with socket.create_server((LOOPBACK, 0)) as free:
            self._port = free.getsockname()[1]
        self._arguments = shlex.split(command.replace("{port}", str(self._port)))
        self._log_path = log_path
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where it answers once it is ready."""
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Of its first process; None where it does not run."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Starts it; returns at once.

        Raises:
            OSError: There is no such program.
        """
        with self._log_path.open("ab") as log:
            self._process = await anyio.open_process(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def kill(self) -> None:
        """Ends it and all its processes at once."""
        process, self._process = self._process, None
        if process is None:
            return
        with anyio.move_on_after(_END_S, shield=True):
            # It may have ended by itself, with all its processes.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await process.aclose()

    async def restart(self) -> None:
        """Kills it and starts another one in its place."""
        await self.kill()
        await self.start()


@asynccontextmanager
async def running_servers(command: str, count: int, directory: Path) -> AsyncIterator[Sequence[EngineServer]]:
    """Runs some servers for the length of a `with` block; they need not be ready yet.

    Raises:
        OSError: There is no such program.
    """
    servers = [EngineServer(command, directory / f"server-{index}.log") for index in range(count)]
    async with AsyncExitStack() as started:
        for server in servers:
            started.push_async_callback(server.kill)
            await server.start()
        yield servers
