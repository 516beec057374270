"""The sandbox's side of E2B's API: rpcs about processes and files, and files over HTTP."""

from __future__ import annotations

import base64
import hmac
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from callsheet.http_server.bounded_json import read_json
from callsheet.integrations.e2b import connect
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, gone, invalid, unsupported
from callsheet.integrations.e2b.messages import (
    Body,
    ListDirectory,
    Message,
    MovePath,
    OnePath,
    SelectProcess,
    SendInput,
    SendSignal,
    StartProcess,
    StreamInput,
    start_event,
)
from callsheet.integrations.e2b.processes import RemoteProcess
from callsheet.integrations.e2b.sandboxes import E2bSandbox, E2bSandboxes
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.e2b.streams import ProcessReader
from callsheet.integrations.sandboxes.remote import FacadeError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_KEEP_ALIVE_S = 50.0
_MOST_MESSAGE_BYTES = 16 << 20
_ALLOWED_USERS = frozenset({"", "user"})


@dataclass(frozen=True, slots=True)
class _Unary:
    """An rpc with one request and one response."""

    request: type[Message]
    answer: Callable[[E2bSandbox, Any], Awaitable[Body]]


async def _list(sandbox: E2bSandbox, asked: Message) -> Body:
    del asked
    return {"processes": sandbox.processes.descriptions()}


async def _signal(sandbox: E2bSandbox, asked: SendSignal) -> Body:
    processes = sandbox.processes
    await processes.signal(processes.find(asked.process), asked.number)
    return {}


async def _input(sandbox: E2bSandbox, asked: SendInput) -> Body:
    processes = sandbox.processes
    await processes.write(processes.find(asked.process), asked.input)
    return {}


async def _close_input(sandbox: E2bSandbox, asked: SelectProcess) -> Body:
    processes = sandbox.processes
    await processes.close_input(processes.find(asked.process))
    return {}


async def _stat(sandbox: E2bSandbox, asked: OnePath) -> Body:
    return {"entry": await sandbox.files.stat(asked.path)}


async def _make(sandbox: E2bSandbox, asked: OnePath) -> Body:
    return {"entry": await sandbox.files.make(asked.path)}


async def _move(sandbox: E2bSandbox, asked: MovePath) -> Body:
    return {"entry": await sandbox.files.move(asked.source, asked.destination)}


async def _remove(sandbox: E2bSandbox, asked: OnePath) -> Body:
    await sandbox.files.remove(asked.path)
    return {}


async def _list_directory(sandbox: E2bSandbox, asked: ListDirectory) -> Body:
    return {"entries": await sandbox.files.list(asked.path, asked.depth)}


_RPCS = {
    "process.Process/List": _Unary(Message, _list),
    "process.Process/SendSignal": _Unary(SendSignal, _signal),
    "process.Process/SendInput": _Unary(SendInput, _input),
    "process.Process/CloseStdin": _Unary(SelectProcess, _close_input),
    "filesystem.Filesystem/Stat": _Unary(OnePath, _stat),
    "filesystem.Filesystem/MakeDir": _Unary(OnePath, _make),
    "filesystem.Filesystem/Move": _Unary(MovePath, _move),
    "filesystem.Filesystem/Remove": _Unary(OnePath, _remove),
    "filesystem.Filesystem/ListDir": _Unary(ListDirectory, _list_directory),
}


class EnvdEndpoints:
    """The endpoints. Errors of rpcs are told by the Connect protocol, those of others are E2bErrors."""

    def __init__(self, sandboxes: E2bSandboxes, settings: E2bSettings) -> None:
        """Args:
        sandboxes: What they serve.
        settings: Of the facade.
        """
        self._sandboxes = sandboxes
        self._users = _ALLOWED_USERS | {settings.user}
        self._most_bytes = settings.max_request_bytes

    def routes(self) -> list[Route]:
        """Returns what clients ask."""
        rpcs = [Route(f"/{path}", partial(self._unary, rpc), methods=["POST"]) for path, rpc in _RPCS.items()]
        streams = [
            Route("/process.Process/Start", partial(self._stream, self._start), methods=["POST"]),
            Route("/process.Process/Connect", partial(self._stream, self._connect), methods=["POST"]),
            Route("/process.Process/StreamInput", partial(self._stream, self._stream_input), methods=["POST"]),
        ]
        others = [
            Route(f"/{service}/{{method}}", self._unknown, methods=["POST"])
            for service in ("process.Process", "filesystem.Filesystem")
        ]
        plain = [
            Route("/health", self.health),
            Route("/files", self.read_file, methods=["GET"]),
            Route("/files", self.write_files, methods=["POST"]),
        ]
        return [*rpcs, *streams, *others, *plain]

    async def health(self, request: Request) -> Response:
        """Answers whether a sandbox is there."""
        if sandbox_of(request, self._sandboxes, wakes=False).paused:
            raise gone(request.headers["E2b-Sandbox-Id"], "it is paused")
        return Response(status_code=204)

    async def read_file(self, request: Request) -> Response:
        """Sends a file."""
        sandbox = sandbox_of(request, self._sandboxes)
        path = request.query_params.get("path", "")
        self._check_user(request.query_params.get("username", ""))
        return StreamingResponse(await sandbox.files.read(path), media_type="application/octet-stream")

    async def write_files(self, request: Request) -> Response:
        """Writes a file that is the body, or the files of a form."""
        sandbox = sandbox_of(request, self._sandboxes)
        self._check_user(request.query_params.get("username", ""))
        if any(name.lower().startswith("x-metadata-") for name in request.headers):
            raise unsupported("metadata of files")
        path = request.query_params.get("path", "")
        if not request.headers.get("Content-Type", "").startswith("multipart/form-data"):
            return JSONResponse([await sandbox.files.write(path, await self._content(request))])
        async with request.form() as form:
            files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
            if not files:
                raise invalid("file", "", "a form must have a file")
            written = [await sandbox.files.write(path or file.filename or "", await file.read()) for file in files]
        return JSONResponse(written)

    async def _content(self, request: Request) -> bytes:
        content = await request.body()
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding == "identity":
            return content
        if encoding != "gzip":
            raise unsupported(f"content encoding {encoding}")
        return await anyio.to_thread.run_sync(unpacked, content, self._most_bytes)

    async def _unary(self, rpc: _Unary, request: Request) -> Response:
        try:
            if connect.is_stream(request.headers.get("Content-Type", "")):
                raise E2bError(ConnectCode.UNIMPLEMENTED, "a stream: must be one message", status=415)
            sandbox = self._sandbox_of_rpc(request)
            asked = await read_json(await request.body() or b"{}", rpc.request.model_validate_json)
            with anyio.fail_after(connect.timeout_s(request.headers.get("Connect-Timeout-Ms"))):
                return JSONResponse(await rpc.answer(sandbox, asked))
        except (FacadeError, ValidationError, TimeoutError) as error:
            fault = told(error)
            return JSONResponse(fault.connect_body(), status_code=fault.status)

    async def _stream(self, begin: Callable[[Request], Awaitable[AsyncIterator[Body]]], request: Request) -> Response:
        try:
            if not connect.is_stream(request.headers.get("Content-Type", "")):
                raise E2bError(ConnectCode.UNIMPLEMENTED, "one message: must be a stream", status=415)
        except E2bError as error:
            return JSONResponse(error.connect_body(), status_code=error.status)
        try:
            events = await begin(request)
        except (FacadeError, ValidationError, TimeoutError) as error:
            return Response(connect.end_frame(told(error)), media_type=connect.STREAM)
        return StreamingResponse(_framed(events), media_type=connect.STREAM)

    async def _start(self, request: Request) -> AsyncIterator[Body]:
        sandbox = self._sandbox_of_rpc(request)
        asked = await read_json(connect.one_message(await request.body()), StartProcess.model_validate_json)
        timeout_s = connect.timeout_s(request.headers.get("Connect-Timeout-Ms"))
        deadline = _deadline(timeout_s)
        process = sandbox.processes.prepare(asked, timeout_s)
        reader = process.output.read()
        self._sandboxes.tasks.start_soon(sandbox.run, process)
        with anyio.fail_after(timeout_s):
            await process.begun.wait()
        if not process.pid and process.fault is not None:
            raise process.fault.with_traceback(None)
        return self._events(request, process, reader, deadline)

    async def _connect(self, request: Request) -> AsyncIterator[Body]:
        sandbox = self._sandbox_of_rpc(request)
        asked = await read_json(connect.one_message(await request.body()), SelectProcess.model_validate_json)
        deadline = _deadline(connect.timeout_s(request.headers.get("Connect-Timeout-Ms")))
        process = sandbox.processes.find(asked.process)
        return self._events(request, process, process.output.read(), deadline)

    async def _stream_input(self, request: Request) -> AsyncIterator[Body]:
        sandbox = self._sandbox_of_rpc(request)
        frames = connect.FrameReader(_MOST_MESSAGE_BYTES)
        process: RemoteProcess | None = None
        with anyio.fail_after(connect.timeout_s(request.headers.get("Connect-Timeout-Ms"))):
            async for content in request.stream():
                for message in frames.feed(content):
                    asked = await read_json(message, StreamInput.model_validate_json)
                    if asked.start is not None:
                        process = sandbox.processes.find(asked.start.process)
                    elif asked.data is not None and process is not None:
                        await sandbox.processes.write(process, asked.data.input)
        frames.close()
        if process is None:
            raise invalid("stream", "", "must begin with a process")
        return _one({})

    async def _unknown(self, request: Request) -> Response:
        fault = unsupported(request.path_params["method"])
        kind = request.headers.get("Content-Type", "")
        if kind.startswith(connect.STREAM):
            return Response(connect.end_frame(fault), media_type=connect.STREAM)
        return JSONResponse(fault.connect_body(), status_code=fault.status)

    async def _events(
        self, request: Request, process: RemoteProcess, reader: ProcessReader, deadline: float
    ) -> AsyncIterator[Body]:
        wanted = request.headers.get("Keepalive-Ping-Interval", "")
        keep_alive_s = min(float(wanted), _KEEP_ALIVE_S) if wanted.isdecimal() and int(wanted) else _KEEP_ALIVE_S
        try:
            yield start_event(process.pid)
            async with aclosing(reader.events(keep_alive_s, deadline)) as events:
                async for event in events:
                    yield event
        finally:
            process.output.leave(reader)

    def _sandbox_of_rpc(self, request: Request) -> E2bSandbox:
        sandbox = sandbox_of(request, self._sandboxes)
        self._check_user(user_of(request.headers.get("Authorization", "")))
        return sandbox

    def _check_user(self, name: str) -> None:
        if name not in self._users:
            rule = f"must be one of {sorted(self._users - {''})}: all commands of a facade have one user"
            raise invalid("user", name, rule)


def sandbox_of(request: Request, sandboxes: E2bSandboxes, *, wakes: bool = True) -> E2bSandbox:
    """Returns the sandbox that a request names, and whose token it gives.

    Args:
        request: The request.
        sandboxes: What it names one of.
        wakes: Whether it wakes one that sleeps.
    """
    sandbox_id = request.headers.get("E2b-Sandbox-Id")
    if sandbox_id is None:
        raise invalid("E2b-Sandbox-Id", "", "must name a sandbox: signed addresses are not supported")
    sandbox = sandboxes.get(sandbox_id)
    if sandbox.access_token is not None:
        given = request.headers.get("X-Access-Token", "").encode()
        if not hmac.compare_digest(given, sandbox.access_token.encode()):
            raise E2bError(ConnectCode.UNAUTHENTICATED, "X-Access-Token: must be the sandbox's own")
    return sandboxes.awake(sandbox) if wakes else sandbox


def _deadline(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else anyio.current_time() + timeout_s


async def _one(message: Body) -> AsyncIterator[Body]:
    yield message


async def _framed(events: AsyncIterator[Body]) -> AsyncIterator[bytes]:
    error: E2bError | None = None
    try:
        async for event in events:
            yield connect.frame(event)
    except E2bError as caught:
        error = caught
    yield connect.end_frame(error)


def told(error: Exception) -> E2bError:
    """Returns an error as a client is told it."""
    if isinstance(error, E2bError):
        return error
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return E2bError(ConnectCode.INVALID_ARGUMENT, f"{place or 'body'}: {first['msg']}")
    if isinstance(error, TimeoutError):
        return E2bError(ConnectCode.DEADLINE_EXCEEDED, "the request took longer than its timeout")
    return E2bError(ConnectCode.INTERNAL, str(error))


def user_of(authorization: str) -> str:
    """Returns the user that a request names, as the name of basic credentials without a password."""
    kind, _, encoded = authorization.partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[0]
    except ValueError as error:
        raise invalid("Authorization", authorization, "must be basic credentials") from error


def unpacked(content: bytes, limit: int) -> bytes:
    """Returns what was packed by gzip; raises E2bError if it is not that, or more than `limit` bytes."""
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        found = decompressor.decompress(content, limit + 1)
    except zlib.error as error:
        raise invalid("body", error, "must be packed by gzip") from error
    if len(found) > limit:
        raise invalid("body", f"more than {limit} bytes", f"must have at most {limit} unpacked")
    return found
