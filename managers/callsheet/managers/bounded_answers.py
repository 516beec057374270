"""Bounds answers of servers while they come: heads, bytes beside a body, and the body."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

MAX_HEAD_BYTES: Final = 1 << 16
"""Bytes of an answer's heads, the final one included, and of the bytes between the parts of its body."""
# So much more than its body an answer may have: parts of one byte each are within it.
_MOST_PER_BYTE: Final = 8
# Parsed at once; other calls come to run after each chunk that is read.
_STEP: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 16


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that end when their server sends without end what is no body; callers bound their number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(limit=0, **options)
        self._factory = partial(_BoundedConnection, loop=self._loop)  # type: ignore[assignment]


async def read_body(got: aiohttp.ClientResponse, most: int) -> bytes:
    """Returns the beginning of an answer's body, which is longer than `most` bytes only if the body is."""
    body = bytearray()
    async for chunk in got.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > most:
            break
    return bytes(body)


class _BoundedConnection(ResponseHandler):
    """A connection, which counts the bytes of an answer."""

    _received = 0

    def set_response_params(self, **parameters: Any) -> None:
        self._received = 0
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, max(len(data), 1), _STEP):
            step = data[begin : begin + _STEP]
            self._received += len(step)
            super().data_received(step)
            body = self._payload.total_bytes if self._payload is not None else 0
            if self._received > MAX_HEAD_BYTES + _MOST_PER_BYTE * body and self.transport is not None:
                self.set_exception(aiohttp.ClientPayloadError(f"more than {MAX_HEAD_BYTES} bytes are no body"))
                self.transport.abort()
            if self.transport is None or self.transport.is_closing():
                return
