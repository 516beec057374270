"""A connection of an HTTP server: bounds what comes beside bodies, and sends in one packet what is said at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

T = TypeVar("T")
MAX_HEAD_BYTES: Final = 1 << 16
"""Most bytes of a request's line and headers, or of the text between the parts of its body."""
HEAD_S: Final = 20.0
"""Seconds within which a head must come, from the connection or from its own first byte."""
# So many bytes beside a body may come with each of its bytes: parts of one byte each are within it.
_MOST_PER_BYTE: Final = 8
_CONNECTION: Final = "callsheet.connection"


async def unless_disconnected(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """Returns what the work for a request returns; None if its client is gone before that, which cancels the work."""
    connection: HttpProtocol = request.scope["extensions"][_CONNECTION]
    with anyio.CancelScope() as scope:
        connection.awaited_in.add(scope)
        try:
            return None if connection.transport.is_closing() else await work()
        finally:
            connection.awaited_in.discard(scope)
    return None


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        awaited_in: What is cancelled when the client hangs up.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unfinished = 0
        self.awaited_in: set[anyio.CancelScope] = set()
        super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._head_due = self.loop.call_later(HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)
        for scope in self.awaited_in:
            scope.cancel()

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        super().data_received(data)
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and self.timeout_keep_alive_task is None and self._head_due.cancelled():
            # An empty line, or the rest of an unread body, has stopped the keep-alive timer but begun no head.
            self._head_due = self.loop.call_later(HEAD_S, self.transport.close)
        # The parser itself keeps whatever comes of a head.
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"Between bodies come at most {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEAD_S, self.transport.close)
        self.scope["extensions"] = {_CONNECTION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        self._head_due.cancel()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = max(self._unfinished - _MOST_PER_BYTE * len(body), 0)
        super().on_body(body)


class _JoinedWrites:
    """A transport that sends at once what is written in one step of the loop: a head with its body."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send)
        self._held += data

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._transport.write(held)
