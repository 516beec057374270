"""The listening sockets of sandboxes that may reach something."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.network.destinations import LOOPBACK, PROXY_PORT, Destination
from callsheet.managers.sandbox.network.proxy import Listening, serve_connection, serve_port

_log = structlog.get_logger(__name__)

# More wait in the sandbox, where the kernel bounds them.
_MOST_CONNECTIONS = 32
_CHECKED_OPTIONS = {socket.SO_DOMAIN: socket.AF_INET, socket.SO_TYPE: socket.SOCK_STREAM, socket.SO_ACCEPTCONN: 1}


def proxy_environment(network: Sequence[Destination]) -> Mapping[str, str]:
    """Returns the variables by which programs find the proxy; none for a sandbox that can reach nothing."""
    if not _proxied(network):
        return {}
    address = f"http://{LOOPBACK}:{PROXY_PORT}"
    variables = dict.fromkeys(("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"), address)
    return variables | dict.fromkeys(("no_proxy", "NO_PROXY"), f"localhost,{LOOPBACK}")


class Door:
    """A way out of one sandbox."""

    def __init__(
        self, listener: socket.socket, serve_one: Callable[[socket.socket], Awaitable[None]], sandbox_id: str
    ) -> None:
        """Creates one.

        Args:
            listener: Of the sandbox; closed by `close`.
            serve_one: Serves a connection, and closes it.
            sandbox_id: For the log.
        """
        self._listener = listener
        self._serve_connection = serve_one
        self._sandbox_id = sandbox_id
        self._scope = anyio.CancelScope()
        self._places = anyio.CapacityLimiter(_MOST_CONNECTIONS)

    def close(self) -> None:
        """Ends all connections."""
        self._scope.cancel()
        self._listener.close()

    async def serve(self) -> None:
        """Takes connections until it is closed."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                while True:
                    connection_end = object()
                    await self._places.acquire_on_behalf_of(connection_end)
                    tasks.start_soon(self._serve_one, await self._accept(), connection_end)

    async def _accept(self) -> socket.socket:
        while True:
            # Without a deadline: the sandbox may never connect, and its end cancels this.
            await anyio.wait_readable(self._listener)
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                continue
            accepted.setblocking(False)
            return accepted

    async def _serve_one(self, accepted: socket.socket, borrower: object) -> None:
        try:
            await self._serve_connection(accepted)
        except* OSError as errors:
            # One end has gone, or was silent for too long.
            _log.debug("connection_ended", sandbox=self._sandbox_id, errors=[str(error) for error in errors.exceptions])
        finally:
            self._places.release_on_behalf_of(borrower)


class NetworkDoors:
    """The doors of all sandboxes of a backend."""

    def __init__(self) -> None:
        """Without any."""
        self._tasks: TaskGroup | None = None
        self._waiting: list[Door] = []

    async def open(self, sandbox: Listening) -> None:
        """Lets a new sandbox reach what it was made to reach, until its end.

        Raises:
            SandboxCreateError: Its agent gave no proper socket.
            SandboxLostError: It is gone.
        """
        spec = sandbox.spec
        for place in spec.network:
            if place.is_loopback:
                await self._open(sandbox, place.port, partial(serve_port, place=place, sandbox=sandbox))
        proxied = _proxied(spec.network)
        if proxied:
            serve_one = partial(serve_connection, allowed=proxied, sandbox=sandbox)
            await self._open(sandbox, PROXY_PORT, serve_one)

    async def _open(self, sandbox: Listening, port: int, serve_one: Callable[[socket.socket], Awaitable[None]]) -> None:
        listener = await sandbox.open_listener(port)
        try:
            # It comes out of the sandbox.
            for option, expected in _CHECKED_OPTIONS.items():
                if listener.getsockopt(socket.SOL_SOCKET, option) != expected:
                    raise SandboxCreateError("the agent's listening socket is none")
            os.set_blocking(listener.fileno(), False)
        except BaseException:
            listener.close()
            raise
        door = Door(listener, serve_one, sandbox.spec.sandbox_id)
        sandbox.on_destroyed(door.close)
        if self._tasks is not None:
            self._tasks.start_soon(door.serve)
        else:
            self._waiting.append(door)

    async def serve(self) -> None:
        """Serves all doors until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                while self._waiting:
                    tasks.start_soon(self._waiting.pop().serve)
                await anyio.sleep_forever()
            finally:
                self._tasks = None


def _proxied(network: Sequence[Destination]) -> tuple[Destination, ...]:
    """Returns what is reached through the proxy."""
    return tuple(place for place in network if not place.is_loopback)
