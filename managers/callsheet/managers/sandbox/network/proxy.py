"""One connection: to a port of the machine, or through the proxy (RFC 9110, section 9.3.6), then bytes both ways.

Everything that comes out of the sandbox is untrusted. Sockets are plain ones, as one of the two ends was made in
another network namespace by another process.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import psutil
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.network.destinations import LOOPBACK, PROXY_PORT, Destination, covered

CONNECT = b"CONNECT"
_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,6000}) (HTTP/1\.[01])\Z")
_ABSOLUTE = re.compile(rb"http://([^/?#@]{1,300})([/?]\S*)?\Z", re.IGNORECASE)
_HTTP_PORT = 80
# Between a client and its proxy alone (RFC 9110, section 7.6.1), besides what Connection names; and what is replaced.
_HOP = frozenset(
    {b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"keep-alive"}
)


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """What the head of a request to a proxy asks for.

    Attributes:
        destination: Where to connect to.
        head: What the server is sent in its place; empty for a tunnel, of which it learns nothing.
    """

    destination: Destination
    head: bytes

    @property
    def is_tunnel(self) -> bool:
        """Whether it is a CONNECT, which is answered once there is a connection."""
        return not self.head


def read_head(head: bytes) -> ProxyRequest:
    """Reads a request's head (RFC 9112, section 3.2): CONNECT to "host:port", or any method with an http URL.

    The server is told to close after its answer, so that a connection through the proxy has one destination.

    Args:
        head: Up to the empty line, without it.

    Raises:
        ValueError: It is neither.
    """
    line, *fields = head.split(b"\r\n")
    match = _LINE.match(line)
    if match is None:
        raise ValueError("no request of HTTP/1")
    method, target, version = match.groups()
    if method == CONNECT:
        return ProxyRequest(Destination.parse(target.decode("ascii")), b"")
    url = _ABSOLUTE.match(target)
    if url is None:
        raise ValueError("neither CONNECT nor an http URL")
    path = url[2] or b"/"
    origin = path if path.startswith(b"/") else b"/" + path
    # The URL says which server is meant, whatever the field says (section 3.2.2).
    kept = [b" ".join((method, origin, version)), b"Host: " + url[1], *_end_to_end(fields), b"Connection: close"]
    return ProxyRequest(_host_and_port(url[1].decode("ascii")), b"\r\n".join(kept) + b"\r\n\r\n")


def _end_to_end(fields: list[bytes]) -> list[bytes]:
    named = [(field.partition(b":")[0].strip().lower(), field) for field in fields]
    listed = b",".join(field.partition(b":")[2] for name, field in named if name == b"connection")
    dropped = _HOP | {name.strip().lower() for name in listed.split(b",")}
    return [field for name, field in named if name not in dropped]


def _host_and_port(authority: str) -> Destination:
    has_port = re.search(r":\d+\Z", authority)
    return Destination.parse(authority if has_port else f"{authority.removesuffix(':')}:{_HTTP_PORT}")


_RESOLVE_SECONDS = 10.0


async def addresses_of(destination: Destination) -> list[str]:
    """Returns the addresses to connect to.

    A name is resolved once, here, so that it cannot lead elsewhere between a check and a connection, and to IPv4 alone,
    since addresses of IPv6 may carry private ones of IPv4 inside.

    Raises:
        OSError: The name is not known, or nothing that it leads to is public.
    """
    if destination.is_address:
        return [destination.host]
    with anyio.fail_after(_RESOLVE_SECONDS):
        found = await anyio.getaddrinfo(
            destination.host, destination.port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
    public = [address[0] for *_, address in found if is_public(str(address[0]))]
    if not public:
        raise PermissionError(f"{destination.host} leads to no public address")
    return public


def is_public(address: str) -> bool:
    """Whether an address of IPv4 is neither this machine's nor of a private or special network."""
    parsed = ipaddress.IPv4Address(address)
    return parsed.is_global and not parsed.is_multicast and address not in _own_addresses()


def _own_addresses() -> set[str]:
    return {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}


_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 15.0
# A frozen sandbox is silent for as long as its model thinks.
_SILENCE_SECONDS = 900.0
_MOST_HEAD_BYTES = 8192
_CHUNK_BYTES = 1 << 16
_LOOPBACK = "127."

_log = structlog.get_logger(__name__)


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


# The listening sockets of sandboxes that may reach something.

# More wait in the sandbox, where the kernel bounds them.
_MOST_CONNECTIONS = 32
_CHECKED_OPTIONS = {socket.SO_DOMAIN: socket.AF_INET, socket.SO_TYPE: socket.SOCK_STREAM, socket.SO_ACCEPTCONN: 1}


class Reaching(Protocol):
    """A `SandboxSpec`, as far as this module needs it."""

    @property
    def sandbox_id(self) -> str:
        """Unique among the sandboxes of a manager."""

    @property
    def network(self) -> tuple[Destination, ...]:
        """What the sandbox can reach."""


class Connecting(Protocol):
    """A sandbox, or what else is behind a proxy, as far as a connection needs it."""

    @property
    def source(self) -> str:
        """From where its connections to the loopback come: tells its trajectory."""

    @property
    def spec(self) -> Reaching:
        """What it was made as."""


class Listening(Connecting, Protocol):
    """A sandbox, as far as this module needs it."""

    async def open_listener(self, port: int) -> socket.socket:
        """Returns a listening socket on the sandbox's own loopback."""

    def on_destroyed(self, release: Callable[[], None]) -> None:
        """Takes a function to call at its end."""


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
