"""The web application and its server: E2B's REST API, the side of its sandboxes, and the requests of `run_code`.

The REST API makes sandboxes, finds them and ends them.
"""

from __future__ import annotations

import base64
import hmac
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from signal import SIGKILL
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import anyio
import anyio.abc
from callsheet.client import Job
from callsheet.http_server.bounded_body import BoundedBody
from callsheet.http_server.bounded_json import read_json
from callsheet.integrations.e2b.envd import EnvdEndpoints, sandbox_of, told
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, invalid, unsupported
from callsheet.integrations.e2b.messages import KEEP_ALIVE, Body, ExecuteCode, NewSandbox, PauseSandbox, SandboxTimeout
from callsheet.integrations.e2b.processes import RemoteProcess
from callsheet.integrations.e2b.sandboxes import AtEnd, E2bSandbox, E2bSandboxes
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.e2b.streams import ProcessReader
from callsheet.integrations.sandboxes.remote import FacadeError
from callsheet.integrations.sandboxes.serving import serve_facade
from callsheet.integrations.sandboxes.settings import SandboxRequest
from pydantic import BaseModel, ValidationError
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
ENVD_VERSION = "0.5.7"
"""Version of the sandbox's side for clients: each version promises abilities, and this one none that is not here."""
_MOST_LISTED = 100
_REFUSED_OPTIONS = ("network", "mcp", "iam", "volume_mounts")
_REFUSED = {
    "fork": "fork",
    "snapshots": "create_snapshot",
    "metrics": "get_metrics",
    "logs": "logs",
    "network": "update_network",
}
BodyT = TypeVar("BodyT", bound=BaseModel)


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

    def make(job: Job, tasks: anyio.abc.TaskGroup, mark: str) -> ASGIApp:
        return make_app(E2bSandboxes(job, settings, tasks, mark), settings)

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


class RestEndpoints:
    """The endpoints. An error is an E2bError."""

    def __init__(self, sandboxes: E2bSandboxes, request: SandboxRequest) -> None:
        """Args:
        sandboxes: What they serve.
        request: What a sandbox is by default.
        """
        self._sandboxes = sandboxes
        self._request = request

    def routes(self) -> list[Route]:
        """Returns what clients ask, in all the versions of it that clients of E2B 2 know."""
        one = "/sandboxes/{sandbox_id}"
        routes = []
        for prefix in ("", "/v2"):
            routes += [
                Route(f"{prefix}/sandboxes", self.create, methods=["POST"]),
                Route(f"{prefix}/sandboxes", self.list, methods=["GET"]),
                Route(f"{prefix}{one}/connect", self.connect, methods=["POST"]),
                Route(f"{prefix}{one}/resume", self.connect, methods=["POST"]),
                Route(f"{prefix}{one}/pause", self.pause, methods=["POST"]),
                Route(f"{prefix}{one}/{{verb}}", _refuse_request, methods=["GET", "POST", "PUT"]),
            ]
        own = [
            Route(one, self.describe, methods=["GET"]),
            Route(one, self.kill, methods=["DELETE"]),
            Route(f"{one}/timeout", self.set_timeout, methods=["POST"]),
        ]
        return [*own, *routes]

    async def create(self, request: Request) -> Response:
        """Makes a sandbox, and answers once it is ready."""
        asked = await _body(request, NewSandbox)
        _check_memory(keeps=asked.auto_pause_memory)
        for option in _REFUSED_OPTIONS:
            if getattr(asked, option):
                raise unsupported(option)
        sandbox = await self._sandboxes.create(
            asked.template_id,
            timeout_s=asked.timeout,
            metadata=asked.metadata or {},
            variables=asked.env_vars or {},
            at_end=_at_end(asked),
            idempotency_key=request.headers.get("Idempotency-Key"),
        )
        return JSONResponse(_made(sandbox), status_code=201)

    async def connect(self, request: Request) -> Response:
        """Returns what a client needs to use a sandbox, which wakes, or may live for longer then."""
        asked = await _body(request, SandboxTimeout)
        sandbox = self._find(request)
        self._sandboxes.resume(sandbox, asked.timeout)
        self._sandboxes.set_timeout(sandbox, asked.timeout, shortens=False)
        return JSONResponse(_made(sandbox))

    async def pause(self, request: Request) -> Response:
        """Lets a sandbox stand still."""
        asked = await _body(request, PauseSandbox)
        _check_memory(keeps=asked.memory)
        self._sandboxes.pause(self._find(request))
        return Response(status_code=204)

    async def set_timeout(self, request: Request) -> Response:
        """Sets how long a sandbox is to live. A paused one wakes, or is not found, as for requests of its own."""
        asked = await _body(request, SandboxTimeout)
        sandbox = self._find(request, awake=True)
        self._sandboxes.set_timeout(sandbox, asked.timeout)
        return Response(status_code=204)

    async def describe(self, request: Request) -> Response:
        """Describes a sandbox."""
        return JSONResponse(self._described(self._find(request)))

    async def list(self, request: Request) -> Response:
        """Describes sandboxes, the newest first."""
        query = request.query_params
        found = [each for each in self._sandboxes.all() if _fits(each, query)]
        found.sort(key=lambda each: each.started_at, reverse=query.get("order") != "asc")
        begin, most = _number(query, "nextToken", 0), min(_number(query, "limit", _MOST_LISTED) or 1, _MOST_LISTED)
        headers = {"x-next-token": str(begin + most)} if begin + most < len(found) else {}
        return JSONResponse([self._described(each) for each in found[begin : begin + most]], headers=headers)

    async def kill(self, request: Request) -> Response:
        """Ends a sandbox."""
        try:
            await self._sandboxes.kill(request.path_params["sandbox_id"])
        except E2bError as error:
            raise _as_missing(error) from error
        return Response(status_code=204)

    def _find(self, request: Request, *, awake: bool = False) -> E2bSandbox:
        try:
            found = self._sandboxes.get(request.path_params["sandbox_id"])
            return self._sandboxes.awake(found) if awake else found
        except E2bError as error:
            raise _as_missing(error) from error

    def _described(self, sandbox: E2bSandbox) -> Body:
        wanted = self._request
        return {
            **_made(sandbox),
            "startedAt": sandbox.started_at.isoformat(),
            "endAt": sandbox.end_at.isoformat(),
            "cpuCount": wanted.cpus,
            "memoryMB": wanted.memory_mib or 0,
            "diskSizeMB": wanted.disk_mib or 0,
            "state": _state(sandbox),
            "lifecycle": {
                "onTimeout": "kill" if sandbox.at_end is AtEnd.KILL else "pause",
                "autoResume": sandbox.at_end is AtEnd.SLEEP,
            },
            "metadata": dict(sandbox.metadata),
            "allowInternetAccess": False,
        }


def _made(sandbox: E2bSandbox) -> Body:
    made: Body = {
        "sandboxID": sandbox.sandbox_id,
        "templateID": sandbox.template,
        "clientID": "callsheet",
        "envdVersion": ENVD_VERSION,
    }
    return made if sandbox.access_token is None else {**made, "envdAccessToken": sandbox.access_token}


def _state(sandbox: E2bSandbox) -> str:
    return "paused" if sandbox.paused else "running"


def _at_end(asked: NewSandbox) -> AtEnd:
    if not asked.auto_pause:
        return AtEnd.KILL
    return AtEnd.SLEEP if asked.auto_resume.enabled else AtEnd.PAUSE


def _check_memory(*, keeps: bool) -> None:
    if not keeps:
        raise unsupported("pause without memory")


def _fits(sandbox: E2bSandbox, query: Mapping[str, str]) -> bool:
    """Returns whether a list asks for a sandbox."""
    # Clients quote names and values, and then the whole of it.
    wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
    if any(sandbox.metadata.get(name) != value for name, value in wanted.items()):
        return False
    if _state(sandbox) not in query.get("state", "running,paused").split(","):
        return False
    if query.get("template", sandbox.template) != sandbox.template:
        return False
    return "startedAfter" not in query or sandbox.started_at >= _time(query["startedAfter"])


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid("startedAfter", text, "must be a time in ISO 8601") from error
    return found.astimezone()


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdecimal():
        raise invalid(name, text, "must be a number")
    return int(text)


def _as_missing(error: E2bError) -> E2bError:
    """Returns the error of a request about a sandbox that is gone: not found, and not unavailable."""
    if error.code is not ConnectCode.UNAVAILABLE:
        return error
    return E2bError(ConnectCode.NOT_FOUND, str(error))


async def _body(request: Request, kind: type[BodyT]) -> BodyT:
    return await read_json(await request.body() or b"{}", kind.model_validate_json)


async def _refuse_request(request: Request) -> Response:
    verb = request.path_params["verb"]
    if verb not in _REFUSED:
        raise E2bError(ConnectCode.NOT_FOUND, f"{verb}: there is no such request")
    raise unsupported(_REFUSED[verb])
