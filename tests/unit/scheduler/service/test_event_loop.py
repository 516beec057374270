"""The scheduler's event loop takes what gRPC has for it together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from callsheet.scheduler.service.event_loop import GatheringLoop


class PollerCompletionQueue:
    """Reads as that of grpc.aio does: one byte, and all that is there."""

    def __init__(self) -> None:
        self.mine, self.other = socket.socketpair()
        self.mine.setblocking(False)
        self.turns = 0

    def handle(self, loop: GatheringLoop) -> None:
        """Takes one byte."""
        assert len(self.mine.recv(1)) == 1
        self.turns += 1


@pytest.fixture
def loop() -> Iterator[GatheringLoop]:
    """A loop, closed in the end."""
    made = GatheringLoop()
    yield made
    made.close()


@pytest.fixture
def queue(loop: GatheringLoop) -> Iterator[PollerCompletionQueue]:
    """A queue that the loop reads."""
    made = PollerCompletionQueue()
    loop.add_reader(made.mine, partial(made.handle, loop))
    yield made
    loop.remove_reader(made.mine)
    made.mine.close()
    made.other.close()


def go_round(loop: GatheringLoop, times: int = 1) -> None:
    """Lets a loop look at its sockets so often."""
    for _ in range(times):
        loop.call_soon(loop.stop)
        loop.run_forever()


@pytest.mark.parametrize("events", [1, 2, 100])
def test_one_turn_takes_all_events(loop: GatheringLoop, queue: PollerCompletionQueue, events: int) -> None:
    for _ in range(events):
        os.write(queue.other.fileno(), b"1")
    go_round(loop, 5)
    assert queue.turns == 1
    os.write(queue.other.fileno(), b"1")
    go_round(loop, 5)
    assert queue.turns == 2


def test_the_readers_of_others_are_left_as_they_are(loop: GatheringLoop) -> None:
    mine, other = socket.socketpair()
    with mine, other:
        taken: list[bytes] = []
        loop.add_reader(mine, lambda size: taken.append(mine.recv(size)), 1)
        other.send(b"abc")
        go_round(loop, 5)
        loop.remove_reader(mine)
    assert taken == [b"a", b"b", b"c"]


_CALL = """
import grpc.aio
from callsheet.scheduler.service.event_loop import GatheringLoop

take_all, turns = GatheringLoop._take_all, []


def noting(self, fd, take):
    turns.append(fd)
    take_all(self, fd, take)


async def call():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary("/nobody/knows")(b"", timeout=20.0)
        except grpc.aio.AioRpcError:
            print("refused")
    await server.stop(None)


GatheringLoop._take_all = noting
GatheringLoop().run_until_complete(call())
print(len(turns))
"""


def test_grpcs_reader_is_known() -> None:
    # In a process of its own: all loops of a process read the same socket of gRPC, and another one may be faster.
    done = subprocess.run([sys.executable, "-c", _CALL], capture_output=True, text=True, timeout=60, check=False)
    refused, _, turns = done.stdout.partition("\n")
    assert refused == "refused", done.stderr
    assert int(turns), "grpc.aio is read another way: the loop goes round for each of its events"
