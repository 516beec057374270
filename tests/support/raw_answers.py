"""A server that answers with whatever bytes a test wants, HTTP or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc


@asynccontextmanager
async def raw_answers(first: bytes, without_end: bytes = b"") -> AsyncIterator[str]:
    """Answers each connection alike, and yields the server's URL.

    Args:
        first: What each client is sent first.
        without_end: What it is sent then, over and over.
    """

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await stream.receive()
                await stream.send(first)
                while without_end:
                    await stream.send(without_end)
                await stream.receive()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()
