"""A contract server: an engine of contract_engine.py behind HTTP in some dialect, which can die and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from tests.support.contract_engine import ContractEngine, DeadError
from tests.support.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ContractServer:
    """One server, which can be started again after its end, on the same port.

    Args:
        new_engine: Makes the engine of each start.
        api_key: What callers must show.
    """

    def __init__(self, new_engine: Callable[[], ContractEngine], *, api_key: str | None = None) -> None:
        self.engine = new_engine()
        self.calls: list[str] = []
        self.refuse: dict[str, int] = {}
        self._new_engine = new_engine
        self._api_key = api_key
        self._port = free_port()
        self._runner: web.AppRunner | None = None
        self._stepping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it is, or will be."""
        return f"http://127.0.0.1:{self._port}"

    def listen_on(self, port: int) -> None:
        """Listens on a port of somebody else's choice."""
        self._port = port

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._runner is not None

    def routes(self) -> dict[str, Handler]:
        """What it answers, by method and path, such as "POST /generate"."""
        raise NotImplementedError

    async def start(self) -> None:
        """Starts it with a new engine."""
        self.engine = self._new_engine()
        self.reset()
        app = web.Application(client_max_size=2**26, middlewares=[self._around])
        for name, handler in self.routes().items():
            method, path = name.split()
            app.router.add_route(method, path, handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._stepping = asyncio.create_task(self.engine.serve())

    def reset(self) -> None:
        """Forgets what the former engine was told."""

    async def die(self) -> None:
        """Ends at once, with all connections."""
        runner, self._runner = self._runner, None
        if self._stepping is not None:
            self._stepping.cancel()
            with suppress(asyncio.CancelledError):
                await self._stepping
            self._stepping = None
        if runner is not None:
            server = runner.server
            for connection in list(server.connections) if server is not None else []:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.calls.append(request.path)
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if (status := self.refuse.get(request.path)) is not None:
            return web.json_response({"error": {"message": "as the test wants it"}}, status=status)
        try:
            return await handler(request)
        except DeadError:
            self._dying = asyncio.create_task(self.die())
            await asyncio.Event().wait()
            raise


@asynccontextmanager
async def running(server: ContractServer) -> AsyncIterator[ContractServer]:
    """Runs a server for the time of a `with` block."""
    await server.start()
    try:
        yield server
    finally:
        await server.die()


async def json_of(request: web.Request) -> dict[str, Any]:
    """The body of a request, or nothing."""
    text = await request.text()
    body = json.loads(text) if text else {}
    return body if isinstance(body, dict) else {}


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a state of the engine. Whoever is served bounds the wait, by ending its connection."""
    while not condition():  # noqa: ASYNC110 - the engine is a loop of its own, which signals nothing
        await asyncio.sleep(0.001)
