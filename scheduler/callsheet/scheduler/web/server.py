"""A small HTTP server for one page, /metrics, with the credentials that the scheduler's rpcs have."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import anyio
import anyio.abc
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSStream
from callsheet.credentials.secret_files import secret_file
from callsheet.credentials.web_pages import why_of_a_web_page
from callsheet.options.common import comma_separated
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.access.token_file import TokenFile, TokenFileError
from callsheet.scheduler.access.tokens import identify
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 256
"""At once; with more the oldest one is closed, so that no silent ones keep others out."""
CALL_TIMEOUT_S: Final = 10.0
"""From the connection to the last byte of the answer."""

_SCHEME: Final = "bearer "
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: HTTPStatus
    content: bytes = b""
    content_type: str = "text/plain; charset=utf-8"

    def encode(self) -> bytes:
        """As HTTP/1.1, after which the connection is closed."""
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.content)}",
            "Connection: close",
        ]
        if self.status is HTTPStatus.UNAUTHORIZED:
            head.append("WWW-Authenticate: Bearer")
        return ("\r\n".join(head) + "\r\n\r\n").encode("ascii") + self.content


class MetricsServer:
    """Answers GET /metrics.

    Args:
        scrape: Returns the page's text.
        access: Who may ask: with tokens those of scope read-only and admin, without them whoever reaches the address.
        refused: Told of each refusal.
    """

    def __init__(
        self,
        scrape: Callable[[], Awaitable[bytes]],
        access: AccessSettings,
        refused: Callable[[RefusalCode], None],
    ) -> None:
        self._scrape = scrape
        self._access = access
        self._refused = refused
        self._tokens = TokenFile(access.tokens) if access.tokens is not None else None
        self._connections: deque[anyio.CancelScope] = deque()
        self._listened = ""

    async def serve(self, listen: str, *, task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled; tells its URL once it listens.

        Raises:
            OSError: The address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        self._listened = host.removeprefix("[").removesuffix("]").lower()
        try:
            listener = await anyio.create_tcp_listener(local_host=self._listened, local_port=int(port))
        except OSError as error:
            raise OSError(f"metrics_listen: cannot bind {listen!r}: {error.strerror or error}") from error
        async with listener:
            bound = listener.extra(anyio.abc.SocketAttribute.local_port)
            scheme = "http" if self._access.tls_cert is None else "https"
            task_status.started(f"{scheme}://{host}:{bound}{PATH}")
            await listener.serve(self._connected)

    async def _connected(self, stream: anyio.abc.SocketStream) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._connections.popleft().cancel()
        try:
            with anyio.move_on_after(CALL_TIMEOUT_S) as scope:
                self._connections.append(scope)
                await self._answer(stream)
        except (OSError, ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead) as error:
            _log.debug("metrics_caller_left", reason=str(error))
        finally:
            if scope in self._connections:
                self._connections.remove(scope)
            with anyio.move_on_after(1.0, shield=True):
                await anyio.aclose_forcefully(stream)

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        secured: anyio.abc.ByteStream = stream
        if (context := self._context()) is not None:
            secured = await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)
        try:
            head = await BufferedByteReceiveStream(secured).receive_until(b"\r\n\r\n", MAX_HEAD_BYTES)
        except anyio.DelimiterNotFound:
            page = Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            here = (stream.extra(anyio.abc.SocketAttribute.local_address)[0], self._listened)
            page = await self._page(head.decode("latin-1"), here)
        await secured.send(page.encode())
        await secured.send_eof() if context is None else await secured.aclose()

    async def _page(self, head: str, here: tuple[str, str]) -> Page:
        method, path, fields = parse_head(head)
        has_certificate, names = self._access.tls_cert is not None, comma_separated(self._access.host_names)
        if (why := why_of_a_web_page(fields, here, names, has_certificate=has_certificate)) is not None:
            return Page(HTTPStatus.FORBIDDEN, f"{why}\n".encode())
        if path.partition("?")[0] != PATH:
            return Page(HTTPStatus.NOT_FOUND, f"the one page is {PATH}\n".encode())
        if method != "GET":
            return Page(HTTPStatus.METHOD_NOT_ALLOWED)
        if (refusal := self._refusal(dict(fields).get("authorization", ""))) is not None:
            self._refused(refusal.code)
            status = HTTPStatus.UNAUTHORIZED if refusal.code is RefusalCode.UNAUTHENTICATED else HTTPStatus.FORBIDDEN
            return Page(status, f"{refusal}\n".encode())
        return Page(HTTPStatus.OK, await self._scrape(), CONTENT_TYPE)

    def _refusal(self, authorization: str) -> RefusedError | None:
        """Returns why a caller may not see the page; None if it may."""
        if self._tokens is None:
            return None
        scheme, token = authorization[: len(_SCHEME)].lower(), authorization[len(_SCHEME) :].strip()
        try:
            identity = identify(token if scheme == _SCHEME else "", self._tokens.records(), time.time())
            identity.require(frozenset({Scope.READ_ONLY}), PATH)
        except RefusedError as refusal:
            return refusal
        except TokenFileError as error:
            _log.error("tokens_unreadable", reason=str(error))
            return RefusedError(RefusalCode.UNAVAILABLE, "authorization", "", "cannot be checked now; try again")
        return None

    def _context(self) -> ssl.SSLContext | None:
        """A new one for each connection: the certificate's files may have changed."""
        access = self._access
        if access.tls_cert is None or access.tls_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(access.tls_cert, secret_file(access.tls_key), password="")
        if access.tls_client_ca is not None:
            context.load_verify_locations(access.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def parse_head(head: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Returns method, path and fields of a request's head, with names in small letters; what is not there is empty."""
    first, *lines = head.split("\r\n")
    method, _, rest = first.partition(" ")
    fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return method, rest.partition(" ")[0], fields
