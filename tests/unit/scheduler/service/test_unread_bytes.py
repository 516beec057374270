"""What all streams together leave unread is bounded, at the cost of whoever leaves the most."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.commands import CancelAttempt
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.sessions import ClientStream, ManagerStream
from callsheet.v1 import outcome_pb2


def outcome(size: int) -> bytes:
    """An outcome of about so many bytes."""
    return outcome_pb2.Outcome(failed=outcome_pb2.Failed(message="x" * size)).SerializeToString()


async def test_the_stream_with_the_most_unread_ends_and_the_others_go_on() -> None:
    unread = UnreadBytes(10_000)
    idle, slow, slower = (ClientStream(unread) for _ in range(3))
    for _ in range(4):
        slow.put_outcome(outcome(1000))
    for _ in range(5):
        slower.put_outcome(outcome(1000))
    assert unread.total > 9000
    idle.put_outcome(outcome(1000))
    closing = slower.outbox.closing
    assert closing is not None
    assert (closing.code, closing.field) == (RefusalCode.RESOURCE_EXHAUSTED, "session")
    assert closing.retry_after, "its client comes back and is told again what it missed"
    assert slower.gone
    assert (idle.outbox.closing, slow.outbox.closing) == (None, None)
    assert unread.total == idle.outbox.unread_bytes + slow.outbox.unread_bytes < 6000


async def test_who_reads_is_never_ended_by_those_who_do_not() -> None:
    unread = UnreadBytes(10_000)
    reader = ClientStream(unread)
    for _ in range(50):
        reader.put_outcome(outcome(3000))
        await reader.outbox.next_batch()
        stuck = ClientStream(unread)
        stuck.put_outcome(outcome(4000))
    assert reader.outbox.closing is None
    assert unread.total <= 10_000


async def test_managers_and_clients_are_counted_together() -> None:
    unread = UnreadBytes(10_000)
    manager, client = ManagerStream("m", unread), ClientStream(unread)
    for number in range(9):
        manager.put_command(CancelAttempt(manager, Token(1, number), "x" * 1000))
    client.put_outcome(outcome(2000))
    assert manager.outbox.closing is not None
    assert client.outbox.closing is None


@pytest.mark.parametrize("how", ["read", "abandoned"])
async def test_what_is_read_or_dropped_counts_no_more(how: str) -> None:
    unread = UnreadBytes(10_000)
    stream = ClientStream(unread)
    stream.put_outcome(outcome(1000))
    stream.put_result(1, None)
    if how == "read":
        await stream.outbox.next_batch()
    else:
        stream.outbox.abandon()
    assert unread.total == 0
    stream.outbox.abandon()
    assert unread.total == 0
