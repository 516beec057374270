"""The web application and its server: from requests of SWE-ReX's protocol to runtimes and back."""

from __future__ import annotations

import hmac
import io
import tarfile
import zipfile
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from callsheet.client import Job
from callsheet.http_server.bounded_body import BoundedBody
from callsheet.http_server.bounded_json import read_json
from callsheet.integrations.sandboxes.serving import serve_facade
from callsheet.integrations.swerex import protocol
from callsheet.integrations.swerex.errors import TransferredError, swerex_error, value_error
from callsheet.integrations.swerex.runtime import DEFAULT_NAME, Runtime, Runtimes
from callsheet.integrations.swerex.settings import FacadeSettings
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

# From the zip archives that SWE-ReX uploads directories as to the tar archives that sandboxes unpack.
_MODE = 0o777
_DEFAULT_MODE = 0o644
_DIRECTORY_MODE = 0o755
_TRANSFERRED = 511
_ADDRESSES = ("", "/{runtime}", "/{runtime}/images/{image:path}")
_VERBS: dict[str, tuple[TypeAdapter[Any], Callable[[Runtime, Any], Awaitable[protocol.Response]]]] = {
    "create_session": (TypeAdapter(protocol.CreateSession), Runtime.create_session),
    "run_in_session": (protocol.SESSION_ACTION, Runtime.run_in_session),
    "close_session": (TypeAdapter(protocol.CloseSession), Runtime.close_session),
    "execute": (TypeAdapter(protocol.Execute), Runtime.execute),
    "read_file": (TypeAdapter(protocol.ReadFile), Runtime.read_file),
    "write_file": (TypeAdapter(protocol.WriteFile), Runtime.write_file),
}


def tar_of_zip(content: bytes, limit: int) -> bytes:
    """Returns a tar archive of the files in a zip archive, with their permissions.

    Args:
        content: The zip archive.
        limit: The most bytes that its files may have together.

    Raises:
        TransferredError: It is no zip archive, has too much in it, or names a place outside of its directory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist(), limit)
            return _pack(archive)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise value_error("file", error, "must be a zip archive without password") from error


def _check(members: list[zipfile.ZipInfo], limit: int) -> None:
    # What is read of a member is bounded by the size that it declares.
    size = sum(member.file_size for member in members)
    if size > limit:
        raise value_error("file", f"{size} bytes unpacked", f"must have at most {limit}")
    for member in members:
        if member.filename.startswith("/") or ".." in member.filename.split("/"):
            raise value_error("file", member.filename, "members must stay inside the archive's directory")


def _pack(archive: zipfile.ZipFile) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in archive.infolist():
            entry = tarfile.TarInfo(member.filename.rstrip("/") or ".")
            if member.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, _DIRECTORY_MODE
                tar.addfile(entry)
                continue
            data = archive.read(member)
            entry.size = len(data)
            entry.mode = (member.external_attr >> 16) & _MODE or _DEFAULT_MODE
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def make_app(runtimes: Runtimes, settings: FacadeSettings) -> Starlette:
    """Returns the application.

    Args:
        runtimes: What it serves.
        settings: Who may ask, and how much.
    """
    endpoints = _Endpoints(runtimes, settings.max_unpacked_bytes)
    routes = [Route("/", _root)]
    for address in _ADDRESSES:
        routes += [Route(f"{address}/{verb}", partial(endpoints.verb, verb), methods=["POST"]) for verb in _VERBS]
        routes += [
            Route(f"{address}/is_alive", endpoints.is_alive),
            Route(f"{address}/upload", endpoints.upload, methods=["POST"]),
            Route(f"{address}/close", endpoints.close, methods=["POST"]),
        ]
    middleware = [Middleware(BoundedBody, limit=settings.max_request_bytes)]
    if settings.auth_token is not None:
        middleware.insert(0, Middleware(_Authentication, token=settings.auth_token))
    handlers: dict[Any, Any] = {
        TransferredError: _transferred,
        ValidationError: _malformed,
        HTTPException: _refused,
        Exception: _broken,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class _Endpoints:
    def __init__(self, runtimes: Runtimes, max_unpacked_bytes: int) -> None:
        self._runtimes = runtimes
        self._max_unpacked_bytes = max_unpacked_bytes

    async def verb(self, name: str, request: Request) -> Response:
        """Any verb with a body in JSON."""
        body, respond = _VERBS[name]
        asked = await read_json(await request.body(), body.validate_json)
        runtime = self._runtime(request)
        response = await runtime.answer(request.headers.get("X-Request-ID"), lambda: respond(runtime, asked))
        return JSONResponse(response)

    async def is_alive(self, request: Request) -> Response:
        """Returns whether requests are served; the first question makes the sandbox begin. Never waits, requests do.

        A sandbox on its way counts: after a "no" SWE-ReX's client blocks its event loop for a while before it asks
        again, so that several clients of one loop would keep each other from ever hearing a "yes".
        """
        try:
            sandbox = self._runtime(request).sandbox
        except TransferredError as fault:
            return JSONResponse({"is_alive": False, "message": str(fault)})
        message = str(sandbox.fault) if sandbox.fault is not None else ""
        return JSONResponse({"is_alive": sandbox.fault is None, "message": message})

    async def upload(self, request: Request) -> Response:
        """Writes a file, or unpacks a zip archive."""
        async with request.form(max_files=1) as form:
            file, target = form.get("file"), form.get("target_path")
            if not isinstance(file, UploadFile) or not isinstance(target, str):
                raise HTTPException(422, "a file named 'file' and a text named 'target_path' are needed")
            content = await file.read()
            unzip = str(form.get("unzip", "false")).lower() in {"true", "1"}
        runtime = self._runtime(request)
        write: Callable[[str, bytes], Awaitable[protocol.Response]] = runtime.write
        if unzip:
            content = await anyio.to_thread.run_sync(tar_of_zip, content, self._max_unpacked_bytes)
            write = runtime.unpack
        return JSONResponse(await runtime.answer(request.headers.get("X-Request-ID"), lambda: write(target, content)))

    async def close(self, request: Request) -> Response:
        """Ends the runtime."""
        await self._runtimes.close(request.path_params.get("runtime", DEFAULT_NAME))
        return JSONResponse({})

    def _runtime(self, request: Request) -> Runtime:
        parameters = request.path_params
        return self._runtimes.get(parameters.get("runtime", DEFAULT_NAME), parameters.get("image", ""))


class _Authentication:
    """Lets nobody in who does not know the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get("X-API-Key", "").encode()
            if not hmac.compare_digest(given, self._token):
                response = JSONResponse({"detail": "Invalid API Key"}, status_code=401)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _root(request: Request) -> Response:
    del request
    return JSONResponse({"message": "Callsheet, speaking the protocol of SWE-ReX 1.4"})


async def _transferred(request: Request, fault: TransferredError) -> Response:
    del request
    return JSONResponse(fault.transfer(), status_code=_TRANSFERRED)


async def _malformed(request: Request, error: ValidationError) -> Response:
    del request
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return JSONResponse({"detail": details}, status_code=422)


async def _refused(request: Request, error: HTTPException) -> Response:
    del request
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    """A bug of the facade: the client gets an exception, and the server logs the traceback."""
    fault = swerex_error("SwerexException", f"the facade failed: {type(error).__name__}", kind="infra")
    return await _transferred(request, fault)


async def serve(
    settings: FacadeSettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves SWE-ReX's protocol; see `serve_facade` for arguments and errors."""

    def make(job: Job, tasks: anyio.abc.TaskGroup, mark: str) -> ASGIApp:
        return make_app(Runtimes(job, settings, tasks, mark), settings)

    await serve_facade(settings, make, stop, task_status=task_status)
