"""The scheduler's event loop takes what gRPC has for it together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import grpc.aio
import pytest
from callsheet.scheduler.service import event_loop
from callsheet.scheduler.service.event_loop import GATHERING_S, GatheringLoop


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


@pytest.mark.parametrize(("crowded", "slept"), [(False, []), (True, [GATHERING_S, GATHERING_S / 2])])
def test_events_wait_for_company_only_while_much_is_under_way(
    loop: GatheringLoop,
    queue: PollerCompletionQueue,
    monkeypatch: pytest.MonkeyPatch,
    *,
    crowded: bool,
    slept: list[float],
) -> None:
    now, waits = [1000.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(event_loop, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    loop.crowded = lambda: crowded
    for passed in (1.0, 0.0, GATHERING_S / 2):
        now[0] += passed
        os.write(queue.other.fileno(), b"1")
        go_round(loop)
    assert queue.turns == 3
    assert [wait for wait in waits if wait] == pytest.approx(slept)


def test_grpcs_reader_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    take_all = GatheringLoop._take_all

    def noting(self: GatheringLoop, fd: int, take: Callable[[], None]) -> None:
        turns.append(fd)
        take_all(self, fd, take)

    monkeypatch.setattr(GatheringLoop, "_take_all", noting)

    async def call() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/nobody/knows")
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(b"", timeout=20.0)
        await server.stop(None)

    # It stays open, as gRPC was used in it.
    GatheringLoop().run_until_complete(call())
    assert turns, "grpc.aio is read another way: the loop goes round for each of its events"
