"""Sandboxes that may reach some places, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.abc
import pytest
from callsheet.managers.executor import Broken
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import outcome_pb2

from tests.support.ports import free_port
from tests.support.sandbox_attempts import attempt_of, reset
from tests.support.sandboxes import open_backend, python, shell, spec_for

pytestmark = pytest.mark.anyio

# Sends a request to the proxy and prints the first line of the answer, then what comes back for the bytes after it.
ASK = """
import os, socket, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTPS_PROXY"])
with socket.create_connection((proxy.hostname, proxy.port), 20) as connection:
    connection.sendall(sys.argv[1].encode() + b"\\r\\n\\r\\n")
    answer = b""
    while b"\\r\\n\\r\\n" not in answer:
        chunk = connection.recv(1000)
        if not chunk:
            break
        answer += chunk
    print(answer.split(b"\\r\\n")[0].decode())
    if b" 200 " in answer:
        connection.sendall(b"x" * 200_000)
        connection.shutdown(socket.SHUT_WR)
        print(sum(len(chunk) for chunk in iter(lambda: connection.recv(65536), b"")))
"""


@asynccontextmanager
async def echo_at(host: str) -> AsyncIterator[int]:
    """A server of this machine that sends everything back; gives its port."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)

    listener = await anyio.create_tcp_listener(local_host=host)
    port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield port
        tasks.cancel_scope.cancel()


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """One at 127.0.0.2, which is reached through the proxy as any address is."""
    async with echo_at("127.0.0.2") as port:
        yield port


@pytest.fixture
async def own_port() -> AsyncIterator[int]:
    """One at 127.0.0.1, whose port sandboxes may have on their own loopback."""
    async with echo_at("127.0.0.1") as port:
        yield port


@asynccontextmanager
async def sandbox_that_reaches(settings: SandboxSettings, *places: str) -> AsyncIterator[AgentSandbox]:
    async with open_backend(settings) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.serve)
        spec = replace(spec_for(settings), network=tuple(map(Destination.parse, places)))
        sandbox = await backend.create(spec, lambda _: None)
        try:
            yield sandbox
        finally:
            await sandbox.destroy()
            tasks.cancel_scope.cancel()


async def ask(sandbox: AgentSandbox, request: str) -> list[str]:
    return (await shell(sandbox, f"python3 -I -c '{ASK}' '{request}'")).splitlines()


async def test_what_is_in_the_list_is_reached_and_nothing_else(settings: SandboxSettings, echo: int) -> None:
    async with sandbox_that_reaches(settings, f"127.0.0.2:{echo}", "*.example.com:443", "*:80") as sandbox:
        here = f"127.0.0.2:{echo}"
        assert await ask(sandbox, f"CONNECT {here} HTTP/1.1") == ["HTTP/1.1 200 Connection established", "200000"]
        for place in ("127.0.0.1:1", "10.0.0.1:443", "example.com:443", "example.org:443", "*.example.com:443"):
            assert (await ask(sandbox, f"CONNECT {place} HTTP/1.1"))[0].startswith("HTTP/1.1 403"), place
        for url in ("http://localhost/", "http://169.254.169.254/latest", f"http://127.0.0.1:{echo}/"):
            assert (await ask(sandbox, f"GET {url} HTTP/1.1"))[0].startswith("HTTP/1.1 403"), url


async def test_what_is_no_request_to_a_proxy_is_refused(settings: SandboxSettings, echo: int) -> None:
    async with sandbox_that_reaches(settings, f"127.0.0.2:{echo}") as sandbox:
        for request in ("CONNECT", "nonsense", "CONNECT 127.0.0.2 HTTP/1.1", "GET / HTTP/1.1", "x" * 9000):
            assert (await ask(sandbox, request))[0].startswith("HTTP/1.1 400"), request[:50]
        # Whatever came before, the next request is served.
        assert (await ask(sandbox, f"CONNECT 127.0.0.2:{echo} HTTP/1.1"))[-1] == "200000"


async def test_requests_of_plain_http_are_passed_on(settings: SandboxSettings, echo: int) -> None:
    code = f"""
import urllib.request
for path in ("/first?a=b", "/second"):
    try:
        urllib.request.urlopen("http://127.0.0.2:{echo}" + path, b"body", timeout=20)
    except Exception as error:
        # The server sends the request back, whose first line is no status.
        print(type(error).__name__, error)
"""
    async with sandbox_that_reaches(settings, f"127.0.0.2:{echo}") as sandbox:
        said = await python(sandbox, code)
        assert said == "BadStatusLine POST /first?a=b HTTP/1.1\r\n\nBadStatusLine POST /second HTTP/1.1\r\n\n"


async def test_a_port_of_the_machine_is_one_of_the_sandbox(settings: SandboxSettings, own_port: int) -> None:
    code = f"""
import os, socket
with socket.create_connection(("127.0.0.1", {own_port}), 20) as connection:
    connection.sendall(b"x" * 200_000)
    connection.shutdown(socket.SHUT_WR)
    print(sum(len(chunk) for chunk in iter(lambda: connection.recv(65536), b"")), "HTTPS_PROXY" in os.environ)
"""
    async with sandbox_that_reaches(settings, f"localhost:{own_port}") as sandbox:
        assert await python(sandbox, code) == "200000 False\n"
    async with sandbox_that_reaches(settings) as sandbox:
        assert "ConnectionRefusedError" in await python(
            sandbox,
            f"""
try:
{code.replace(chr(10), chr(10) + "    ")}
except OSError as error:
    print(type(error).__name__)
""",
        )


async def test_a_name_that_leads_to_this_machine_is_refused(settings: SandboxSettings, echo: int) -> None:
    async with sandbox_that_reaches(settings, f"127.2:{echo}") as sandbox:
        assert await ask(sandbox, f"CONNECT 127.2:{echo} HTTP/1.1") == ["HTTP/1.1 403 Not a public address"]


async def test_a_place_that_does_not_answer_is_told(settings: SandboxSettings) -> None:
    silent = free_port()
    async with sandbox_that_reaches(settings, "127.0.0.2:9", f"127.0.0.1:{silent}") as sandbox:
        assert (await ask(sandbox, "CONNECT 127.0.0.2:9 HTTP/1.1"))[0].startswith("HTTP/1.1 502")
        closed = f"import socket; print(socket.create_connection(('127.0.0.1', {silent}), 20).recv(1))"
        assert await python(sandbox, closed) == "b''\n"


async def test_past_the_proxy_there_is_nothing(settings: SandboxSettings, echo: int) -> None:
    code = f"""
import socket
for address in (("127.0.0.2", {echo}), ("1.1.1.1", 443)):
    try:
        socket.create_connection(address, 2)
        print("reached", address)
    except OSError:
        pass
"""
    async with sandbox_that_reaches(settings, f"127.0.0.2:{echo}") as sandbox:
        assert await python(sandbox, code) == ""


async def test_without_a_list_there_is_no_proxy(settings: SandboxSettings) -> None:
    async with sandbox_that_reaches(settings) as sandbox:
        assert "proxy" not in (await shell(sandbox, "env")).lower()
        listening = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))"
        assert await python(sandbox, listening) == "111\n"


async def test_a_flood_of_connections_is_bounded(settings: SandboxSettings, echo: int) -> None:
    code = """
import socket
held = []
for _ in range(300):
    connection = socket.socket()
    connection.settimeout(0.02)
    if connection.connect_ex(("127.0.0.1", 3128)) == 0:
        held.append(connection)
print(len(held) < 200)
"""
    async with sandbox_that_reaches(settings, f"127.0.0.2:{echo}") as sandbox:
        assert await python(sandbox, code) == "True\n"
        assert (await ask(sandbox, f"CONNECT 127.0.0.2:{echo} HTTP/1.1"))[-1] == "200000"


async def test_what_the_operator_does_not_allow_is_the_environments_failure(settings: SandboxSettings) -> None:
    executor = build_sandbox_executor(replace(settings, network=(Destination("*.example.com", 443),)))
    try:
        for place in (
            "example.org:443",
            "example.com:443",
            "*:443",
            "10.0.0.1:443",
            "127.0.0.1:3128",
            "127.0.0.1:80",
            "no place",
        ):
            action = reset()
            action.env_reset.network.append(place)
            result = await executor.run(attempt_of(action, resources={"memory": 64}))
            assert isinstance(result, Broken), place
            assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_ENV, "network_refused")
    finally:
        await executor.close()
