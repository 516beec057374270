"""An HTTP proxy that loses answers: the server has answered, and its client gets an error or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

import aiohttp
from aiohttp import web


class Fate(Enum):
    """What becomes of an answer."""

    ERROR = "error"
    """Its place takes a 500 of the proxy's own."""
    CUT = "cut"
    """The connection is reset before its first byte."""
    HALF = "half"
    """The connection is reset in its middle."""


class FaultyHttpProxy:
    """Passes requests on, and deals with their answers as it is told.

    Attributes:
        url: Where clients connect.
        fates: Of the next answers; the ones after them are passed on.
        requests: How many came.
    """

    def __init__(self, target: str) -> None:
        self.url = ""
        self.fates: list[Fate] = []
        self.requests = 0
        self._target = target

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serves one request."""
        self.requests += 1
        headers = {name: value for name, value in request.headers.items() if name.lower() not in {"host"}}
        body = await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, f"{self._target}{request.path_qs}", data=body, headers=headers) as answer,
        ):
            content = await answer.read()
        fate = self.fates.pop(0) if self.fates else None
        if fate is Fate.ERROR:
            return web.Response(status=500, text="injected")
        kept = {name: value for name, value in answer.headers.items() if name.lower() != "transfer-encoding"}
        response = web.StreamResponse(status=answer.status, headers=kept)
        if fate is Fate.CUT:
            _reset(request)
            return response
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: len(content) // 2] if fate is Fate.HALF else content)
        if fate is Fate.HALF:
            _reset(request)
        return response


def _reset(request: web.Request) -> None:
    transport = request.transport
    assert isinstance(transport, asyncio.Transport)
    transport.abort()


@asynccontextmanager
async def faulty_http_proxy(target: str) -> AsyncIterator[FaultyHttpProxy]:
    """Runs a proxy on a free loopback port."""
    proxy = FaultyHttpProxy(target)
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        yield proxy
    finally:
        await runner.cleanup()
