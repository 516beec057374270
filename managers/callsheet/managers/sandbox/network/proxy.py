"""One connection: to a port of the machine, or through the proxy (RFC 9110, section 9.3.6), then bytes both ways.

Everything that comes out of the sandbox is untrusted. Sockets are plain ones, as one of the two ends was made in
another network namespace by another process.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import structlog
from callsheet.managers.sandbox.network.addresses import addresses_of
from callsheet.managers.sandbox.network.destinations import Destination, covered
from callsheet.managers.sandbox.network.plain_http import ProxyRequest, read_head

_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 15.0
# A frozen sandbox is silent for as long as its model thinks.
_SILENCE_SECONDS = 900.0
_MOST_HEAD_BYTES = 8192
_CHUNK_BYTES = 1 << 16
_LOOPBACK = "127."

_log = structlog.get_logger(__name__)


class Reaching(Protocol):
    """A `SandboxSpec`, as far as this module needs it."""

    @property
    def sandbox_id(self) -> str:
        """Unique among the sandboxes of a manager."""

    @property
    def network(self) -> tuple[Destination, ...]:
        """Destinations that the sandbox can reach."""


class Connecting(Protocol):
    """A sandbox, or what else is behind a proxy, as far as a connection needs it."""

    @property
    def source(self) -> str:
        """From where its connections to the loopback come: tells its trajectory."""

    @property
    def spec(self) -> Reaching:
        """The specification that it was made with."""


class Listening(Connecting, Protocol):
    """A sandbox, as far as this module needs it."""

    async def open_listener(self, port: int) -> socket.socket:
        """Returns a listening socket on the sandbox's own loopback."""

    def on_destroyed(self, release: Callable[[], None]) -> None:
        """Takes a function to call at its end."""


class _RefusedError(Exception):
    """The answer to a request that is not carried out."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


async def serve_connection(inside: socket.socket, allowed: Sequence[Destination], sandbox: Connecting) -> None:
    """Serves one connection out of a sandbox to the proxy, and closes it.

    Args:
        inside: Non-blocking, just accepted.
        allowed: What the sandbox may reach.
        sandbox: Says from where to connect.
    """
    with inside:
        try:
            request, rest = await _read_request(inside, allowed)
            outside = await _connect(request.destination, sandbox.source)
        except _RefusedError as refusal:
            _log.info("connection_refused", sandbox=sandbox.spec.sandbox_id, answer=refusal.status)
            await _answer(inside, refusal.status)
            return
        with outside:
            if request.is_tunnel:
                await _answer(inside, "200 Connection established")
            await _send(outside, request.head + rest)
            await _copy_both(inside, outside)


async def serve_port(inside: socket.socket, place: Destination, sandbox: Listening) -> None:
    """Serves one connection out of a sandbox to a port of the machine's loopback, and closes it.

    Args:
        inside: Non-blocking, just accepted.
        place: The port.
        sandbox: Says from where to connect.
    """
    with inside:
        try:
            outside = await _connect(place, sandbox.source)
        except _RefusedError as refusal:
            # What the client speaks is not known: it finds its connection closed.
            _log.info("connection_refused", sandbox=sandbox.spec.sandbox_id, answer=refusal.status)
            return
        with outside:
            await _copy_both(inside, outside)


async def _read_request(inside: socket.socket, allowed: Sequence[Destination]) -> tuple[ProxyRequest, bytes]:
    """Returns what is asked for, and what followed the request's head already."""
    head = b""
    with anyio.move_on_after(_HEAD_SECONDS):
        while b"\r\n\r\n" not in head:
            chunk = await _receive(inside)
            if not chunk or len(head) + len(chunk) > _MOST_HEAD_BYTES:
                raise _RefusedError("400 Bad Request")
            head += chunk
    head, end, rest = head.partition(b"\r\n\r\n")
    if not end:
        raise _RefusedError("400 Bad Request")
    try:
        request = read_head(head)
    except ValueError as error:
        raise _RefusedError("400 Bad Request") from error
    if "*" in request.destination.host or not covered(request.destination, allowed):
        raise _RefusedError("403 Not in this sandbox's list")
    return request, rest


async def _connect(destination: Destination, source: str) -> socket.socket:
    problem = "no address"
    try:
        with anyio.fail_after(_CONNECT_SECONDS):
            for address in await addresses_of(destination):
                try:
                    return await _connect_to(address, destination.port, source)
                except OSError as error:
                    problem = os.strerror(error.errno) if error.errno else str(error)
    except PermissionError as error:
        raise _RefusedError("403 Not a public address") from error
    except OSError as error:
        raise _RefusedError("502 Cannot be reached") from error
    raise _RefusedError(f"502 {problem}")


async def _connect_to(address: str, port: int, source: str) -> socket.socket:
    outside = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        outside.setblocking(False)
        if address.startswith(_LOOPBACK):
            outside.bind((source, 0))
        number = outside.connect_ex((address, port))
        if number == errno.EINPROGRESS:
            await anyio.wait_writable(outside)
            number = outside.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
    except BaseException:
        outside.close()
        raise
    return outside


async def _answer(inside: socket.socket, status: str) -> None:
    await _send(inside, f"HTTP/1.1 {status}\r\n\r\n".encode())


async def _copy_both(inside: socket.socket, outside: socket.socket) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_copy, inside, outside)
        tasks.start_soon(_copy, outside, inside)


async def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the end of the source, which it passes on."""
    while chunk := await _receive(source):
        await _send(target, chunk)
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


async def _receive(source: socket.socket) -> bytes:
    while True:
        try:
            return source.recv(_CHUNK_BYTES)
        except BlockingIOError:
            with anyio.fail_after(_SILENCE_SECONDS):
                await anyio.wait_readable(source)


async def _send(target: socket.socket, content: bytes) -> None:
    left = memoryview(content)
    while left:
        try:
            left = left[target.send(left) :]
        except BlockingIOError:
            with anyio.fail_after(_SILENCE_SECONDS):
                await anyio.wait_writable(target)
