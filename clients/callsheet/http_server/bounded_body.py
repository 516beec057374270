"""Bounds what requests may bring."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BoundedBody:
    """Refuses bodies that are too large, while they come: each by itself, and all that are not answered yet."""

    def __init__(self, app: ASGIApp, limit: int, limit_of_all: int | None = None) -> None:
        """Args:
        app: What serves requests.
        limit: Bytes of one request.
        limit_of_all: Bytes of all requests that are being served; None for no bound.
        """
        self._app = app
        self._limit = limit
        self._limit_of_all = limit_of_all
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on; reading beyond a limit raises HTTPException 413, or 429 for that of all requests."""
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            more = len(message.get("body", b""))
            size += more
            self._held += more
            if size > self._limit:
                raise HTTPException(413, f"a request has at most {self._limit} bytes")
            if self._limit_of_all is not None and self._held > self._limit_of_all:
                raise HTTPException(429, "too many bytes of requests wait for their answers: try again")
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held -= size
