"""Addresses of a server, and a uvicorn that leaves signals to the program around it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import structlog
import uvicorn
from callsheet.credentials.secret_files import secret_file
from callsheet.credentials.web_pages import FORBIDDEN, why_of_a_web_page
from callsheet.http_server.http_protocol import HttpProtocol
from callsheet.http_server.trace_context import CALLER_SPAN, traceparent_of
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# A server's side of TLS: its certificate is read anew when its files have changed.
_log = structlog.get_logger(__name__)

_MOST_CONNECTIONS = 16_384


def following_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Returns what handshakes are made with; each of them looks whether the files have changed.

    Args:
        cert: The certificate and its chain, as PEM.
        key: Its key, as PEM.

    Raises:
        ValueError: They cannot be read, or do not fit each other.
    """
    stamps = _stamps(cert, key)
    try:
        current = first = _context(cert, key)
    except OSError as error:
        raise ValueError(f"tls_cert: {cert} with {key}: cannot be used: {error}") from error

    def renew(handshake: ssl.SSLObject, _name: str | None, _context_of_listener: ssl.SSLContext) -> None:
        nonlocal current, stamps
        found = _stamps(cert, key)
        if found != stamps:
            try:
                current = _context(cert, key)
            except OSError as error:
                # Half replaced, for instance: the next handshake looks again.
                _log.error("certificates_unreadable", file=str(cert), reason=str(error))
            else:
                stamps = found
                _log.info("certificates_replaced", cert=str(cert))
        handshake.context = current

    first.sni_callback = renew
    return first


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, secret_file(key))
    return context


def _stamps(*paths: Path) -> list[tuple[int, int]]:
    """Returns stamps that change when a file does; none for a missing file."""
    found = [path.stat() for path in paths if path.exists()]
    return [(status.st_ino, status.st_mtime_ns) for status in found]


class EmbeddedServer(uvicorn.Server):
    """A server that is a part of a program, which asks it to end with `stop_with`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves; a cancelled one would leave its sockets in the loop, where their numbers are used again."""
        try:
            await super().serve(sockets)
        finally:
            for server in getattr(self, "servers", ()):
                server.close()

    async def stop_with(self, stop: anyio.Event) -> None:
        """Has it end, in good order, once an event is set."""
        await stop.wait()
        self.should_exit = True


class _Entrance:
    """Answers requests that a web page made a browser send, and notes whose span the others are below."""

    def __init__(
        self, app: ASGIApp, listen: str, names: Sequence[str], *, has_certificate: bool, own_pages: bool
    ) -> None:
        self._app, self._own_pages = app, own_pages
        self._listened = split_address(listen)[0].lower()
        self._names, self._has_certificate = names, has_certificate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        CALLER_SPAN.set(traceparent_of(headers))
        here = (scope["server"][0], self._listened)
        why = why_of_a_web_page(
            headers, here, self._names, has_certificate=self._has_certificate, own_pages=self._own_pages
        )
        app = self._app if why is None else PlainTextResponse(why, FORBIDDEN)
        await app(scope, receive, send)


def make_server(
    app: ASGIApp,
    *,
    shutdown_s: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    listen: str,
    host_names: Sequence[str] = (),
    own_pages: bool = False,
    headers: Sequence[tuple[str, str]] = (),
) -> EmbeddedServer:
    """Returns a server that is to be given its socket.

    Args:
        app: What it serves.
        shutdown_s: How long running requests may go on when it is asked to end.
        tls_cert: The certificate to show, as PEM; None serves without TLS.
        tls_key: The key of that certificate, as PEM.
        listen: Where its socket listens, as "host:port".
        host_names: Further names of it.
        own_pages: Whether it has web pages, which may call it.
        headers: What each answer has, errors included.

    Raises:
        ValueError: A file of TLS cannot be used.
    """
    configuration = uvicorn.Config(
        _Entrance(app, listen, host_names, has_certificate=tls_cert is not None, own_pages=own_pages),
        headers=list(headers),
        lifespan="off",
        log_config=None,
        # Below it are lines for each request that is none, from whomever it comes.
        log_level="error",
        access_log=False,
        server_header=False,
        # Nobody's word for another's address: by it a sandbox could pass for the machine.
        proxy_headers=False,
        http=HttpProtocol,
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(shutdown_s)),
    )
    configuration.load()
    if tls_cert is not None and tls_key is not None:
        configuration.ssl = following_context(tls_cert, tls_key)
    return EmbeddedServer(configuration)


def listen(address: str) -> socket.socket:
    """Returns a socket that listens at "host:port".

    Raises:
        OSError: It cannot listen there.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"listen: cannot bind {address}: {error.strerror}") from error
    # Connections take it over; asyncio sets it for sockets that were made for TCP by name alone. Without it what is
    # written second waits for the acknowledgement of the first, which peers delay by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """Returns "host:port" of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port"; an IPv6 host is in brackets.

    Raises:
        ValueError: It is no such address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"listen: {address!r}: must be HOST:PORT, for instance 127.0.0.1:8000 or [::1]:8000")
    return host.removeprefix("[").removesuffix("]"), int(port)
