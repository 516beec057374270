"""What `run_code` of e2b_code_interpreter asks of a sandbox."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from signal import SIGKILL

import anyio
from callsheet.http_server.bounded_json import read_json
from callsheet.integrations.e2b.envd import sandbox_of
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, unsupported
from callsheet.integrations.e2b.messages import KEEP_ALIVE, ExecuteCode
from callsheet.integrations.e2b.processes import RemoteProcess
from callsheet.integrations.e2b.sandboxes import E2bSandbox, E2bSandboxes
from callsheet.integrations.e2b.streams import ProcessReader
from callsheet.integrations.sandboxes.faults import FacadeError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

# A process is asked for its id only after its step began, which may wait for a place in a queue.
_BEGIN_TIMEOUT_S = 600.0
_KILL_TIMEOUT_S = 30.0
# A client that is gone is seen after so long without output.
_LOOK_S = 1.0
_MOST_REASON = 2000


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
