"""The Connect protocol with JSON, as far as a server needs it: frames, time-outs and names of content types. Pure.

E2B's clients speak JSON, and no more of the protocol than what is here. The package `connectrpc` would bring protobuf
messages of a runtime of its own, in a version that changes its interface often.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from callsheet.integrations.e2b.errors import ConnectCode, E2bError, invalid

UNARY = "application/json"
STREAM = "application/connect+json"

_HEADER_BYTES = 5
_COMPRESSED = 0b01
_END = 0b10
_MOST_TIMEOUT_DIGITS = 10


def frame(message: Mapping[str, Any]) -> bytes:
    """Returns one message of a stream."""
    return _envelope(0, message)


def end_frame(error: E2bError | None = None) -> bytes:
    """Returns what ends a stream, with the error that ended it."""
    return _envelope(_END, {} if error is None else {"error": error.connect_body()})


def _envelope(flags: int, message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return bytes([flags]) + len(body).to_bytes(4, "big") + body


class FrameReader:
    """Takes the bytes of a stream of requests apart.

    Attributes:
        limit: The most bytes of one message.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting = bytearray()

    def feed(self, content: bytes) -> Iterator[bytes]:
        """Yields the messages that are whole now.

        Raises:
            E2bError: A message is compressed or too long.
        """
        self._waiting += content
        while len(self._waiting) >= _HEADER_BYTES:
            flags, size = self._waiting[0], int.from_bytes(self._waiting[1:_HEADER_BYTES], "big")
            if flags & _COMPRESSED:
                raise E2bError(ConnectCode.UNIMPLEMENTED, "compressed messages: not supported")
            if size > self.limit:
                raise invalid("message", f"{size} bytes", f"must have at most {self.limit}")
            if len(self._waiting) < _HEADER_BYTES + size:
                return
            message = bytes(self._waiting[_HEADER_BYTES : _HEADER_BYTES + size])
            del self._waiting[: _HEADER_BYTES + size]
            yield message

    def close(self) -> None:
        """Raises E2bError if the stream ended within a message."""
        if self._waiting:
            raise invalid("stream", f"{len(self._waiting)} bytes", "must not end within a message")


def one_message(body: bytes) -> bytes:
    """Returns the only message of a stream of requests; raises E2bError if there is another number of them."""
    reader = FrameReader(len(body))
    messages = list(reader.feed(body))
    reader.close()
    if len(messages) != 1:
        raise invalid("stream", f"{len(messages)} messages", "must be one")
    return messages[0]


def timeout_s(header: str | None) -> float | None:
    """Returns the seconds of a `Connect-Timeout-Ms` header; None if there is none. Raises E2bError if it is none."""
    if header is None:
        return None
    if not header.isascii() or not header.isdecimal() or len(header) > _MOST_TIMEOUT_DIGITS:
        raise invalid("Connect-Timeout-Ms", header, f"must be a number of at most {_MOST_TIMEOUT_DIGITS} digits")
    return int(header) / 1000


def is_stream(content_type: str) -> bool:
    """Returns whether a content type is that of a stream.

    Raises:
        E2bError: The content type is neither a stream's nor that of one message, in JSON.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in {UNARY, STREAM}:
        raise E2bError(ConnectCode.UNIMPLEMENTED, f"content type {kind!r}: must be {UNARY} or {STREAM}", status=415)
    return kind == STREAM
