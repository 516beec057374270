"""Connections of HTTP servers: no part of an answer waits, little comes beside bodies, work ends with its client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from callsheet.http_server import http_protocol
from callsheet.http_server.http_protocol import MAX_HEAD_BYTES, unless_disconnected
from callsheet.http_server.listening import address_of, listen, make_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.packets import packets_of

pytestmark = pytest.mark.anyio
_WAIT_S = 60.0
_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def _serving(app: Starlette, at: str = "127.0.0.1:0", host_names: Sequence[str] = ()) -> AsyncIterator[str]:
    stop = anyio.Event()
    with listen(at) as listener, anyio.fail_after(_WAIT_S):
        server = make_server(app, shutdown_s=1.0, tls_cert=None, tls_key=None, listen=at, host_names=host_names)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(server.serve, sockets=[listener]))
            tasks.start_soon(server.stop_with, stop)
            yield address_of(listener)
            stop.set()


async def _length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def test_no_part_of_a_stream_waits_for_an_acknowledgement() -> None:
    options: list[int] = []

    async def stream(request: Request) -> Response:
        accepted = request.scope["extensions"]["callsheet.connection"].transport.get_extra_info("socket")
        options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"part"
                await anyio.lowlevel.checkpoint()

        return StreamingResponse(parts(), headers={"content-length": "12"})

    async with _serving(Starlette(routes=[Route("/", stream)])) as address:
        _, answer = await anyio.to_thread.run_sync(packets_of, address, _GET, 2)
    assert answer.endswith(b"\r\n\r\npartpartpart")
    assert all(options)
    assert len(options) == 2


_LONG = b"a" * (8 * MAX_HEAD_BYTES)
_CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + _LONG,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + _LONG,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES,
        _CHUNKED + b"2;" + _LONG,
        _CHUNKED + (b"2;" + b"a" * (MAX_HEAD_BYTES // 4) + b"\r\nab\r\n") * 32,
        _CHUNKED + b"0\r\nX: " + _LONG,
    ],
)
async def test_what_comes_beside_bodies_is_bounded(sent: bytes) -> None:
    def ends(address: str) -> bool:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), _WAIT_S) as connection:
            try:
                connection.sendall(sent)
                # An end of the request itself is never sent.
                return connection.recv(1 << 16).startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
            except ConnectionError:
                # The end overtook the answer, as not all was read.
                return True

    async with _serving(Starlette(routes=[Route("/", _length, methods=["GET", "POST"])])) as address:
        assert await anyio.to_thread.run_sync(ends, address)


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b""),
        (_GET + b"GET / HTTP/1.1\r\nHost", b": localhost\r\n"),
        (_GET, b"GET / HTTP/1.1\r\nHost"),
        (_GET, b"\r\n"),
        (b"POST /early HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na", b"a"),
    ],
    ids=["nothing", "half", "a second half", "a later half", "an empty line", "more of a body that nobody reads"],
)
async def test_a_head_that_does_not_come_ends_its_connection(
    sent: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    async with _serving(Starlette(routes=[Route("/", _length), Route("/early", Response())])) as address:
        host, _, port = address.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(sent)
            answers = 0
            async for _ in stream:
                answers += 1
                await stream.send(then)
            assert answers == bool(then)


@pytest.mark.parametrize("length", [0, 1, 3 << 20])
async def test_bodies_of_any_length_come_whole(length: int) -> None:
    def lengths(address: str) -> bytes:
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nX: {'y' * 50_000}\r\n\r\n".encode()
        return packets_of(address, head + b"z" * length, 3)[1]

    async with _serving(Starlette(routes=[Route("/", _length, methods=["POST"])])) as address:
        assert (await anyio.to_thread.run_sync(lengths, address)).endswith(b"\r\n\r\n" + str(length).encode())


async def test_work_ends_with_the_connection_of_its_client() -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def wait(request: Request) -> Response:
        async def work() -> str:
            began.set()
            await anyio.sleep_forever()
            return "never"

        assert await unless_disconnected(request, work) is None
        ended.set()
        return Response(status_code=499)

    async with _serving(Starlette(routes=[Route("/", wait)])) as address:
        host, _, port = address.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(_GET)
            await began.wait()
        await ended.wait()


@pytest.mark.parametrize("at", ["127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0", "[::]:0"])
@pytest.mark.parametrize(
    ("head", "served"),
    [
        ("Host: HERE", True),
        ("Host: localhost:1", True),
        ("Host: trainer.example", True),
        ("Host: page.example", False),
        ("Host: page.example\r\nHost: localhost", False),
        ("Host: localhost\r\nOrigin: http://page.example", False),
        ("Host: localhost\r\nOrigin: null\r\nConnection: Upgrade\r\nUpgrade: websocket", False),
        ("Host: page.example\r\nX-Forwarded-Host: localhost\r\nForwarded: host=localhost", False),
    ],
)
async def test_web_pages_get_nothing(at: str, head: str, served: bool) -> None:
    page = PlainTextResponse("the page")
    async with _serving(Starlette(routes=[Route("/", page)]), at, ["trainer.example"]) as address:
        port = address.rpartition(":")[2]
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(at.removesuffix(":0"), at.removesuffix(":0"))
        request = f"GET / HTTP/1.1\r\n{head.replace('HERE', f'{host}:{port}')}\r\n\r\n".encode()
        _, answer = await anyio.to_thread.run_sync(packets_of, f"{host.strip('[]')}:{port}", request, 1)
    assert (answer.startswith(b"HTTP/1.1 200"), b"the page" in answer) == (served, served)
    assert answer.startswith(b"HTTP/1.1 403") != served


async def test_nobodys_word_counts_for_anothers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")

    async def peer(request: Request) -> Response:
        assert request.client is not None
        return PlainTextResponse(f"{request.client.host} by {request.url.scheme}")

    said = b"X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=10.0.0.1;proto=https\r\n"
    async with _serving(Starlette(routes=[Route("/", peer)])) as address:
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + said + b"\r\n"
        _, answer = await anyio.to_thread.run_sync(packets_of, address, head, 1)
    assert answer.endswith(b"\r\n\r\n127.0.0.1 by http")
