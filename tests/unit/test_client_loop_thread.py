"""The event loop of the sync client."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest
from callsheet.client.loop_thread import LoopThread


async def _end_late(ended: Future[None]) -> None:
    for _ in range(100):
        await asyncio.sleep(0)
    ended.set_result(None)


def test_what_is_about_to_end_ends_before_the_loop_is_closed() -> None:
    # gRPC's tasks are such: cancelled ones leave an event behind that gRPC hands to a loop that is closed.
    thread = LoopThread("test")
    ended: Future[None] = Future()
    task = thread.start(_end_late(ended))
    thread.stop()
    assert ended.done()
    assert not task.cancelled()


def test_a_thread_stops_twice_and_runs_nothing_more() -> None:
    thread = LoopThread("test")
    thread.stop()
    thread.stop()
    late = _end_late(Future())
    with pytest.raises(RuntimeError):
        thread.start(late)
    late.close()
