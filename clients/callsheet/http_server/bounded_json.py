"""Bounds the JSON of a body before it is parsed: a few bytes of it can make hundreds of an object in memory.

Python's parsers keep all other threads from running while they parse. The bounds are such that this is no longer than
a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException

# Objects and arrays within each other.
MAX_DEPTH: Final = 100
# Objects, arrays and fields of objects in one body.
MAX_FIELDS: Final = 1 << 16
# Values in one body, such as token ids.
MAX_VALUES: Final = 1 << 18
_TOO_MUCH: Final = 413
_STEP: Final = 1 << 16
_NO_MARKS: Final = bytes(set(range(256)) - set(b"[]{},:"))
_LARGE: Final = 1 << 16
# What is parsed takes up to nine times the memory of its body, until its reader has taken what it needs.
_LARGE_ONES: Final = anyio.CapacityLimiter(2)
T = TypeVar("T")


async def read_json(content: bytes, read: Callable[[bytes], T]) -> T:
    """Returns what `read` makes of a body; a large one is read in a thread, and few of those at once.

    Raises:
        HTTPException: It is beyond a bound.
    """

    def work() -> T:
        check_json(content)
        return read(content)

    return work() if len(content) <= _LARGE else await anyio.to_thread.run_sync(work, limiter=_LARGE_ONES)


def check_json(content: bytes) -> None:
    """Raises HTTPException if text of UTF-8 that may be JSON is beyond a bound."""
    fields = values = depth = 0
    for marks in _marks(content):
        brackets = marks.translate(None, b",:")
        values += marks.count(b",")
        fields += marks.count(b":") + brackets.count(b"[") + brackets.count(b"{")
        if fields > MAX_FIELDS or values > MAX_VALUES:
            rule = f"at most {MAX_FIELDS} objects, arrays and fields, and {MAX_VALUES} values"
            raise HTTPException(_TOO_MUCH, f"the body has too many parts: it must have {rule}")
        for bracket in brackets:
            depth += 1 if bracket in b"[{" else -1
            if depth > MAX_DEPTH:
                raise HTTPException(_TOO_MUCH, f"the body is nested too deep: it must have at most {MAX_DEPTH} levels")


def _marks(content: bytes) -> Iterator[bytes]:
    """Yields the brackets, colons and commas beside texts, in steps between which other threads come to run."""
    cut, within = b"", 0
    for begin in range(0, len(content), _STEP):
        step = (cut + content[begin : begin + _STEP]).replace(b"\\\\", b"")
        cut = b"\\" if step.endswith(b"\\") else b""
        parts = step.removesuffix(cut).replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[within::2]).translate(None, _NO_MARKS)
        within = (within + len(parts) - 1) % 2
