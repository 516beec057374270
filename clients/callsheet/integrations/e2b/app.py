"""The web application and its server: E2B's REST API, the side of its sandboxes, and what `run_code` asks of one."""

from __future__ import annotations

import base64
import hmac
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from signal import SIGKILL
from typing import Any

import anyio
import anyio.abc
from callsheet.client import Job
from callsheet.http_server.bounded_body import BoundedBody
from callsheet.http_server.bounded_json import read_json
from callsheet.integrations.e2b.envd import EnvdEndpoints, sandbox_of, told
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, unsupported
from callsheet.integrations.e2b.messages import KEEP_ALIVE, ExecuteCode
from callsheet.integrations.e2b.processes import RemoteProcess
from callsheet.integrations.e2b.rest import RestEndpoints
from callsheet.integrations.e2b.sandboxes import E2bSandbox, E2bSandboxes
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.e2b.streams import ProcessReader
from callsheet.integrations.sandboxes.remote import FacadeError
from callsheet.integrations.sandboxes.serving import FacadeParts, serve_facade
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

_REST = ("/sandboxes", "/v2/sandboxes")
# A process is asked for its id only after its step began, which may wait for a place in a queue.
_BEGIN_TIMEOUT_S = 600.0
_KILL_TIMEOUT_S = 30.0
# A client that is gone is seen after so long without output.
_LOOK_S = 1.0
_MOST_REASON = 2000


def make_app(sandboxes: E2bSandboxes, settings: E2bSettings) -> Starlette:
    """Returns the application.

    Args:
        sandboxes: What it serves.
        settings: Who may ask, and how much.
    """
    middleware = [Middleware(BoundedBody, limit=settings.max_request_bytes)]
    if settings.auth_token is not None:
        middleware.insert(0, Middleware(_ApiKey, key=settings.auth_token))
    handlers: dict[Any, Any] = {
        FacadeError: _foreseen,
        ValidationError: _foreseen,
        HTTPException: _refused,
        Exception: _broken,
    }
    rest, envd = RestEndpoints(sandboxes, settings.sandbox), EnvdEndpoints(sandboxes, settings)
    routes = [Route("/", _root), *rest.routes(), *envd.routes(), *CodeEndpoints(sandboxes).routes()]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class _ApiKey:
    """Lets nobody to the REST API who does not know the key; sandboxes have tokens of their own."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_REST):
            given = Headers(scope=scope).get("X-API-Key", "").encode()
            if not hmac.compare_digest(given, self._key):
                error = E2bError(ConnectCode.UNAUTHENTICATED, "X-API-Key: must be the facade's token")
                await JSONResponse(error.rest_body(), status_code=error.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _root(request: Request) -> Response:
    del request
    return JSONResponse({"message": "Callsheet, speaking the protocols of E2B 2"})


async def _foreseen(request: Request, error: Exception) -> Response:
    del request
    fault = told(error)
    return JSONResponse(fault.rest_body(), status_code=fault.status)


async def _refused(request: Request, error: HTTPException) -> Response:
    del request
    return JSONResponse({"code": error.status_code, "message": error.detail}, status_code=error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    """A bug of the facade: the client is told, and the server logs the traceback."""
    fault = E2bError(ConnectCode.INTERNAL, f"the facade failed: {type(error).__name__}")
    return await _foreseen(request, fault)


async def serve(
    settings: E2bSettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves E2B's protocols; see `serve_facade` for arguments and errors."""

    def make(job: Job, tasks: anyio.abc.TaskGroup) -> FacadeParts:
        sandboxes = E2bSandboxes(job, settings, tasks)
        return FacadeParts(make_app(sandboxes, settings), sandboxes.close_all)

    await serve_facade(settings, make, stop, task_status=task_status)


class CodeEndpoints:
    """The endpoints. An error is an E2bError; one that comes after the first output breaks the connection."""

    def __init__(self, sandboxes: E2bSandboxes) -> None:
        """Args: sandboxes: What they serve."""
        self._sandboxes = sandboxes

    def routes(self) -> list[Route]:
        """Returns what clients ask."""
        contexts = ("/contexts", "/contexts/{context_id}", "/contexts/{context_id}/restart")
        refused = [Route(path, _refuse, methods=["GET", "POST", "DELETE"]) for path in contexts]
        return [Route("/execute", self.execute, methods=["POST"]), *refused]

    async def execute(self, request: Request) -> Response:
        """Executes code, and sends what comes of it while it runs: JSON objects, one a line."""
        sandbox = sandbox_of(request, self._sandboxes)
        asked = await read_json(await request.body(), ExecuteCode.model_validate_json)
        process = sandbox.processes.prepare(await sandbox.code.process(asked), None)
        reader = process.output.read()
        self._sandboxes.tasks.start_soon(sandbox.run, process)
        with anyio.fail_after(_BEGIN_TIMEOUT_S):
            await process.begun.wait()
        parts = _parts(request, sandbox, process, reader)
        return StreamingResponse(_after(await anext(parts, b""), parts), media_type="application/x-ndjson")


async def _parts(
    request: Request, sandbox: E2bSandbox, process: RemoteProcess, reader: ProcessReader
) -> AsyncGenerator[bytes]:
    """Yields what a process prints; raises E2bError if it fails. It is killed if nobody wants the rest."""
    reason = ""
    ended = False
    try:
        async with aclosing(reader.events(_LOOK_S, math.inf)) as events:
            async for message in events:
                if message is KEEP_ALIVE and await request.is_disconnected():
                    return
                event = message["event"]
                data = event.get("data", {})
                if "stdout" in data:
                    yield base64.b64decode(data["stdout"])
                if "stderr" in data:
                    reason = (reason + base64.b64decode(data["stderr"]).decode(errors="replace"))[-_MOST_REASON:]
                if "end" in event and event["end"]["exitCode"] != 0:
                    ended = True
                    raise E2bError(ConnectCode.INVALID_ARGUMENT, f"run_code: python3 failed: {reason.strip()}")
        ended = True
    finally:
        process.output.leave(reader)
        if not ended and process.fault is None:
            # A sandbox that ends meanwhile has no process any more.
            with anyio.move_on_after(_KILL_TIMEOUT_S, shield=True), suppress(FacadeError):
                await sandbox.processes.signal(process, SIGKILL)


async def _after(first: bytes, parts: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def _refuse(request: Request) -> Response:
    del request
    raise unsupported("contexts of code")
