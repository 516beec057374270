"""What a command prints, on its way to a reader that may be slow."""

from __future__ import annotations

import anyio
import pytest
from callsheet.client import OutputChunk, OutputStream
from callsheet.client.session.ticket import MAX_WAITING_BYTES, LiveOutput

pytestmark = pytest.mark.anyio
OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR


async def read(output: LiveOutput) -> list[OutputChunk]:
    with anyio.fail_after(60):
        return [chunk async for chunk in output.chunks()]


async def test_parts_come_in_order_until_the_end() -> None:
    output = LiveOutput()
    output.put(OUT, 0, b"ab")
    output.put(ERR, 0, b"x")
    output.put(OUT, 2, b"c")
    output.end()
    assert await read(output) == [OutputChunk(OUT, b"ab"), OutputChunk(ERR, b"x"), OutputChunk(OUT, b"c", 2)]


async def test_what_was_lost_on_the_way_is_told_by_stream() -> None:
    output = LiveOutput()
    output.put(OUT, 5, b"ab")
    output.put(ERR, 0, b"x")
    output.put(OUT, 17, b"c")
    output.end()
    assert [chunk.dropped_bytes for chunk in await read(output)] == [5, 0, 10]


async def test_a_slow_reader_loses_the_oldest_and_is_told() -> None:
    output = LiveOutput()
    part = MAX_WAITING_BYTES // 2
    for number in range(5):
        output.put(OUT, number * part, bytes(part))
    output.end()
    chunks = await read(output)
    assert [(chunk.offset, chunk.dropped_bytes) for chunk in chunks] == [(3 * part, 3 * part), (4 * part, 0)]
