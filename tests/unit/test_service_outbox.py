"""What waits to be written to a stream is bounded, and forgotten with its stream."""

from __future__ import annotations

import anyio
import pytest
from callsheet.scheduler.core.commands import AcknowledgeEnd, CancelAttempt
from callsheet.scheduler.core.model import RefusalCode, Token
from callsheet.scheduler.service import sessions
from callsheet.scheduler.service.sessions import MAX_BYTES, MAX_ITEMS, ClientStream, ManagerStream, is_gone
from callsheet.v1 import client_service_pb2, manager_service_pb2, outcome_pb2


def outcome(size: int) -> outcome_pb2.Outcome:
    """An outcome of about so many bytes."""
    return outcome_pb2.Outcome(failed=outcome_pb2.Failed(message="x" * size))


async def written(stream: ClientStream) -> list[client_service_pb2.ClientSessionResponse]:
    """What a closing stream still writes."""
    batches = []
    while (batch := await stream.outbox.next_batch()) is not None:
        batches.append(batch)
    return batches


async def test_batches_are_bounded_in_items_and_in_bytes() -> None:
    stream = ClientStream()
    for sequence in range(MAX_ITEMS + 1):
        stream.put_result(sequence, None)
    first = await stream.outbox.next_batch()
    second = await stream.outbox.next_batch()
    assert first is not None
    assert second is not None
    assert (len(first.results), len(second.results)) == (MAX_ITEMS, 1)
    for _ in range(3):
        stream.put_outcome(outcome(MAX_BYTES // 2))
    assert stream.outbox.backlog == 3


async def test_a_session_that_does_not_read_is_closed_by_the_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_WAITING_BYTES", 10_000)
    stream = ClientStream()
    for _ in range(9):
        stream.put_outcome(outcome(1000))
    assert stream.outbox.closing is None
    stream.put_outcome(outcome(1000))
    closing = stream.outbox.closing
    assert closing is not None
    assert closing.code is RefusalCode.RESOURCE_EXHAUSTED
    assert sum(batch.ByteSize() for batch in await written(stream)) < 10_000


async def test_what_was_read_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_WAITING_BYTES", 10_000)
    stream = ClientStream()
    for _ in range(50):
        stream.put_outcome(outcome(1000))
        await stream.outbox.next_batch()
    assert stream.outbox.closing is None


def test_a_session_whose_stream_has_ended_keeps_nothing() -> None:
    stream = ClientStream()
    stream.put_outcome(outcome(1000))
    stream.outbox.abandon()
    stream.put_outcome(outcome(1000))
    stream.put_result(1, None)
    stream.put_output(client_service_pb2.ActionOutput())
    assert stream.outbox.backlog == 0
    assert is_gone(stream)


async def kinds_of_next_batch(stream: ManagerStream) -> list[str | None]:
    """What the next message to a manager holds."""
    with anyio.fail_after(20.0):
        batch = await stream.outbox.next_batch()
    assert isinstance(batch, manager_service_pb2.ManagerSessionResponse)
    return [item.WhichOneof("item") for item in batch.items]


async def test_the_acknowledgement_of_an_end_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "COMPANY_WAIT", 3600.0)
    stream = ManagerStream("m")
    for sequence in range(3):
        stream.put_command(AcknowledgeEnd(stream, Token(1, sequence)), 256)
        stream.put_command(CancelAttempt(stream, Token(2, sequence), "enough"), 256)
        assert await kinds_of_next_batch(stream) == ["end_acknowledged", "cancel"]
    stream.put_command(AcknowledgeEnd(stream, Token(1, 3)), 256)
    with anyio.move_on_after(0.05):
        await stream.outbox.next_batch()
        pytest.fail("it went alone")


async def test_the_acknowledgement_of_an_end_goes_alone_where_no_company_comes() -> None:
    stream = ManagerStream("m")
    for sequence in range(3):
        stream.put_command(AcknowledgeEnd(stream, Token(1, sequence)), 256)
        assert await kinds_of_next_batch(stream) == ["end_acknowledged"]
