"""Messages between a reward manager and its workers: JSON behind its length, over pipes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

Message = Mapping[str, Any]
LENGTH = struct.Struct("<I")
MOST_BYTES = 256 << 20


def encode(message: Message) -> bytes:
    """A message as it goes through a pipe."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=True).encode()
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """The message of a frame."""
    message: dict[str, Any] = json.loads(body)
    return message


def read(pipe: BinaryIO) -> dict[str, Any] | None:
    """The next message of a blocking pipe; None at its end."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = pipe.read(size)
    return decode(body) if len(body) == size else None
