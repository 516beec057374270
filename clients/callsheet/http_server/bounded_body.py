"""Bounds what requests may bring."""

from __future__ import annotations

import math

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BoundedBody:
    """Refuses bodies that are too large, while they come: each by itself, and all that are not answered yet."""

    def __init__(
        self, app: ASGIApp, limit: int, limit_of_all: int | None = None, within_s: float | None = None
    ) -> None:
        """Args:
        app: What serves requests.
        limit: Bytes of one request.
        limit_of_all: Bytes of all requests that are being served; None for no bound.
        within_s: Seconds in which a body must come, from when it is first read; None for no bound.
        """
        self._app = app
        self._limit = limit
        self._limit_of_all = limit_of_all
        self._within_s = within_s
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on; reading beyond a limit raises HTTPException: 413, 429 for that of all, 408 for time."""
        size = 0
        # Behind the body comes the end of the connection, which may take any time.
        deadline: float | None = None

        async def bounded() -> Message:
            nonlocal size, deadline
            if deadline is None:
                deadline = math.inf if self._within_s is None else anyio.current_time() + self._within_s
            with anyio.CancelScope(deadline=deadline) as time_left:
                message = await receive()
            if time_left.cancelled_caught:
                raise HTTPException(408, f"the body of a request must come within {self._within_s:g} s")
            if not message.get("more_body"):
                deadline = math.inf
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
