"""Bounded capture of output."""

from __future__ import annotations

import os

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.capture import HeadTailBuffer, OutputPipe
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(min_value=1, max_value=100))
def test_head_and_tail_are_kept_and_the_rest_is_counted(chunks: list[bytes], limit: int) -> None:
    buffer = HeadTailBuffer(limit)
    for chunk in chunks:
        buffer.append(chunk)
    whole = b"".join(chunks)
    kept = buffer.content()
    assert buffer.total == len(whole)
    assert len(kept) == min(limit, len(whole))
    assert len(kept) + buffer.dropped == len(whole)
    if not buffer.dropped:
        assert kept == whole
    else:
        head = (limit + 1) // 2
        assert (kept[:head], kept[head:]) == (whole[:head], whole[len(whole) - (limit - head) :])


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit: 0"):
        HeadTailBuffer(0)


@pytest.mark.anyio
async def test_a_pipe_is_read_to_its_end() -> None:
    pipe = OutputPipe(100)
    os.write(pipe.write_end, b"some output")
    pipe.close_write_end()
    pipe.finish()
    assert not pipe.is_open
    assert pipe.buffer.content() == b"some output"


@pytest.mark.anyio
async def test_what_comes_after_the_finish_is_dropped() -> None:
    pipe = OutputPipe(100)
    try:
        os.write(pipe.write_end, b"before")
        pipe.finish()
        os.write(pipe.write_end, b"after")
        await anyio.sleep(0.01)
        assert pipe.is_open
        assert pipe.buffer.content() == b"before"
    finally:
        pipe.close()
    assert not pipe.is_open
