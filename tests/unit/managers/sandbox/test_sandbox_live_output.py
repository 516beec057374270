"""What a command prints, on its way out of the manager."""

from __future__ import annotations

import anyio
import pytest
from callsheet.managers.sandbox.backend import OutputName
from callsheet.managers.sandbox.commands.live_output import LONGEST_CHUNK, LiveOutput
from callsheet.v1 import common_pb2

pytestmark = pytest.mark.anyio
OUT, ERR = common_pb2.OUTPUT_STREAM_STDOUT, common_pb2.OUTPUT_STREAM_STDERR


def told(chunks: list[common_pb2.OutputChunk]) -> list[tuple[int, int, bytes]]:
    return [(chunk.stream, chunk.offset, chunk.content) for chunk in chunks]


async def test_the_first_part_goes_at_once_and_the_rest_together() -> None:
    sent: list[common_pb2.OutputChunk] = []
    live = LiveOutput(sent.append)
    live.take(OutputName.STDOUT, b"one")
    assert told(sent) == [(OUT, 0, b"one")]
    live.take(OutputName.STDOUT, b"two")
    live.take(OutputName.STDERR, b"err")
    live.take(OutputName.STDOUT, b"three")
    assert len(sent) == 1
    live.close()
    assert told(sent[1:]) == [(OUT, 3, b"twothree"), (ERR, 0, b"err")]


async def test_what_waits_goes_by_itself_after_a_while() -> None:
    sent: list[common_pb2.OutputChunk] = []
    arrived = anyio.Event()

    def send(chunk: common_pb2.OutputChunk) -> None:
        sent.append(chunk)
        if len(sent) == 2:
            arrived.set()

    live = LiveOutput(send)
    live.take(OutputName.STDOUT, b"one")
    live.take(OutputName.STDOUT, b"two")
    with anyio.fail_after(60):
        await arrived.wait()
    assert told(sent) == [(OUT, 0, b"one"), (OUT, 3, b"two")]
    live.close()
    assert len(sent) == 2


async def test_a_flood_is_cut_and_its_offsets_stay_true() -> None:
    sent: list[common_pb2.OutputChunk] = []
    live = LiveOutput(sent.append)
    live.take(OutputName.STDOUT, b"first")
    for _ in range(3):
        live.take(OutputName.STDOUT, bytes(LONGEST_CHUNK - 100))
    live.close()
    live.take(OutputName.STDOUT, b"last")
    live.close()
    sizes = [(chunk.offset, len(chunk.content)) for chunk in sent]
    assert sizes == [(0, 5), (5, LONGEST_CHUNK), (5 + 3 * (LONGEST_CHUNK - 100), 4)]
