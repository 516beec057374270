"""The E2B facade as a process, and a client of it that is nobody's but speaks the protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from callsheet.managers.supervision.processes import ChildProcess, ProcessSpec, run_process

KEY = "not-a-secret"
WAIT_S = 60


@asynccontextmanager
async def e2b_process(scheduler: str, *arguments: str) -> AsyncIterator[ChildProcess]:
    """Runs `callsheet facade e2b`; its fact "address" is where it listens."""
    command = ("facade", "e2b", "--scheduler", scheduler, "--listen", "127.0.0.1:0", *arguments)
    spec = ProcessSpec("e2b", "callsheet.cli.main", command, environment={"CALLSHEET_FACADE_TOKEN": KEY})
    async with run_process(spec) as process:
        yield process


class E2bCaller:
    """Sends requests to a facade."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._url = f"http://{address}"

    async def rest(
        self, method: str, path: str, body: object = None, key: str = KEY, **headers: str
    ) -> tuple[int, Any]:
        """Asks the REST API; returns status and body."""
        given = {"X-API-Key": key, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self._session.request(method, f"{self._url}{path}", json=body, headers=given) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def create(self, **asked: Any) -> CalledSandbox:
        """Makes a sandbox."""
        status, made = await self.rest("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600, **asked})
        assert status == 201, made
        return CalledSandbox(self._session, self._url, made["sandboxID"], made["envdAccessToken"])


class CalledSandbox:
    """The side of one sandbox."""

    def __init__(self, session: aiohttp.ClientSession, url: str, sandbox_id: str, token: str) -> None:
        self.sandbox_id = sandbox_id
        self._session = session
        self._url = url
        self.headers = {"E2b-Sandbox-Id": sandbox_id, "X-Access-Token": token}

    async def rpc(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Calls an rpc with one request and one response; returns status and body."""
        given = {**self.headers, **headers}
        async with self._session.post(f"{self._url}/{path}", json=body, headers=given) as response:
            return response.status, await response.json()

    async def plain(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Sends a request that is no rpc; returns status and body."""
        async with self._session.request(method, f"{self._url}{path}", headers=self.headers, **options) as response:
            return response.status, await response.read()

    async def stream(self, path: str, body: object, **headers: str) -> AsyncGenerator[Any]:
        """Calls an rpc that streams; yields its messages, the last one being how it ended."""
        message = json.dumps(body).encode()
        given = {**self.headers, "Content-Type": "application/connect+json", **headers}
        data = b"\0" + len(message).to_bytes(4, "big") + message
        async with self._session.post(f"{self._url}/{path}", data=data, headers=given) as response:
            while True:
                head = await response.content.readexactly(5)
                yield json.loads(await response.content.readexactly(int.from_bytes(head[1:], "big")))
                if head[0] == 2:
                    return

    def start(self, text: str, timeout_s: float | None = WAIT_S, **process: Any) -> AsyncGenerator[Any]:
        """Begins a command; yields what comes of it."""
        headers = {"Connect-Timeout-Ms": str(round(timeout_s * 1000))} if timeout_s is not None else {}
        config = {"cmd": "/bin/bash", "args": ["-c", text], **process}
        return self.stream("process.Process/Start", {"process": config, "stdin": False}, **headers)

    async def run(self, text: str, timeout_s: float | None = WAIT_S, **process: Any) -> tuple[str, str, Any, Any]:
        """Runs a command; returns both outputs, the event of its end and how its stream ended."""
        printed = {"stdout": b"", "stderr": b""}
        end: Any = None
        closed: Any = None
        async for message in self.start(text, timeout_s, **process):
            event = message.get("event")
            closed = message if event is None else None
            for stream, content in (event or {}).get("data", {}).items():
                printed[stream] += base64.b64decode(content)
            end = (event or {}).get("end", end)
        return printed["stdout"].decode(), printed["stderr"].decode(), end, closed
