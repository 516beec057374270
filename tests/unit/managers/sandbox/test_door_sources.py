"""From where sandboxes come to ports of the machine's loopback: an address that tells their trajectory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.network.proxy import Listening, serve_connection, serve_port

pytestmark = pytest.mark.anyio
_WAIT_S = 30.0


@dataclass
class _Sandbox:
    """A `Listening` without an agent."""

    source: str
    spec: SandboxSpec = field(default_factory=lambda: SandboxSpec("s", 64, 1, 8, frozenset({0})))

    async def open_listener(self, port: int) -> socket.socket:
        raise NotImplementedError(port)

    def on_destroyed(self, release: Callable[[], None]) -> None:
        raise NotImplementedError(release)


async def _peer(
    serve: Callable[[socket.socket], Coroutine[Any, Any, None]], said: bytes, listener: socket.socket
) -> str:
    """Returns the address from which a server sees a connection that a program in a sandbox makes."""
    inside, program = socket.socketpair()
    inside.setblocking(False)
    program.sendall(said)
    with anyio.fail_after(_WAIT_S), program:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, inside)
            accepted, peer = await anyio.to_thread.run_sync(listener.accept)
            accepted.close()
            program.shutdown(socket.SHUT_RDWR)
    return str(peer[0])


@pytest.mark.parametrize("place", ["127.0.0.1", "127.0.0.2"])
async def test_a_sandbox_comes_from_the_address_of_its_trajectory(place: str) -> None:
    with socket.create_server((place, 0)) as listener:
        listener.settimeout(_WAIT_S)
        port = listener.getsockname()[1]
        to = Destination(place, port)
        sandbox = _Sandbox(sandbox_source("", ""))
        checked: Listening = sandbox
        door = partial(serve_port, place=to, sandbox=checked)
        proxy = partial(serve_connection, allowed=(to,), sandbox=checked)
        # A door is open before the sandbox is somebody's: that of a pool was made for nobody.
        for trajectory_id in ("t-1", "t-2"):
            sandbox.source = sandbox_source("j", trajectory_id)
            assert await _peer(door, b"", listener) == sandbox.source
            request = f"CONNECT {place}:{port} HTTP/1.1\r\n\r\n".encode()
            assert await _peer(proxy, request, listener) == sandbox.source
