"""A TCP proxy whose connections can be cut: a network that fails while both ends live on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """Passes bytes on between its clients and a server.

    Attributes:
        address: Where clients connect, "127.0.0.1:port".
        connections: How many were made.
        silent: Whether all bytes are dropped, as if a machine or a cable were gone: no end hears of it.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.connections = 0
        self.silent = False
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Resets every connection; new ones can be made at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client until either end closes."""
        self.connections += 1
        host, _, port = self._target.rpartition(":")
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pass_on(reader, server_writer), self._pass_on(server_reader, writer))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A cut connection ends this direction; the other one ends too, as both are aborted.
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(1 << 16):
                    if self.silent:
                        continue
                    writer.write(chunk)
                    await writer.drain()
        finally:
            writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(target: str) -> AsyncIterator[CuttingProxy]:
    """Runs a proxy on a free loopback port."""
    proxy = CuttingProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()
