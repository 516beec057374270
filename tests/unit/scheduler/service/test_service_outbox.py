"""What waits to be written to a stream is bounded, and forgotten with its stream."""

from __future__ import annotations

import anyio
import pytest
from callsheet.scheduler.core.words.commands import AcknowledgeEnd, CancelAttempt
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service import outbox
from callsheet.scheduler.service.outbox import MAX_BYTES, MAX_ITEMS
from callsheet.scheduler.service.sessions import ClientStream, ManagerStream
from callsheet.v1 import client_service_pb2, manager_service_pb2, outcome_pb2


def outcome(size: int) -> bytes:
    """An outcome of about so many bytes."""
    return outcome_pb2.Outcome(failed=outcome_pb2.Failed(message="x" * size)).SerializeToString()


async def next_batch(stream: ClientStream) -> client_service_pb2.ClientSessionResponse | None:
    """The next message to a client; None if its session ends."""
    batch = await stream.outbox.next_batch()
    return None if batch is None else client_service_pb2.ClientSessionResponse.FromString(batch)


async def written(stream: ClientStream) -> list[client_service_pb2.ClientSessionResponse]:
    """What a closing stream still writes."""
    batches = []
    while (batch := await next_batch(stream)) is not None:
        batches.append(batch)
    return batches


async def test_batches_are_bounded_in_items_and_in_bytes() -> None:
    stream = ClientStream()
    for sequence in range(MAX_ITEMS + 1):
        stream.put_result(sequence, None)
    first = await next_batch(stream)
    second = await next_batch(stream)
    assert first is not None
    assert second is not None
    assert (list(first.accepted), list(second.accepted)) == (list(range(MAX_ITEMS)), [MAX_ITEMS])
    for _ in range(3):
        stream.put_outcome(outcome(MAX_BYTES // 2))
    assert stream.outbox.backlog == 3


async def test_a_session_that_does_not_read_is_closed_by_the_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 10_000)
    stream = ClientStream()
    for _ in range(9):
        stream.put_outcome(outcome(1000))
    assert stream.outbox.closing is None
    stream.put_outcome(outcome(1000))
    closing = stream.outbox.closing
    assert closing is not None
    assert closing.code is RefusalCode.RESOURCE_EXHAUSTED
    assert await written(stream) == []


async def test_a_session_that_was_closed_for_what_waits_keeps_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream cannot end before its reader has taken what is being written, which may be never."""
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 10_000)
    stream = ClientStream()
    for _ in range(15):
        stream.put_outcome(outcome(1000))
        stream.put_result(1, None)
    assert stream.outbox.closing is not None
    assert stream.outbox.backlog == 0
    assert stream.gone


async def test_what_was_read_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 10_000)
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
    assert stream.gone


async def kinds_of_next_batch(stream: ManagerStream) -> list[str | None]:
    """What the next message to a manager holds."""
    with anyio.fail_after(20.0):
        batch = await stream.outbox.next_batch()
    assert batch is not None
    return [item.WhichOneof("item") for item in manager_service_pb2.ManagerSessionResponse.FromString(batch).items]


async def test_the_acknowledgement_of_an_end_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "COMPANY_WAIT", 3600.0)
    stream = ManagerStream("m")
    for sequence in range(3):
        stream.put_command(AcknowledgeEnd(stream, Token(1, sequence), patient=True))
        stream.put_command(CancelAttempt(stream, Token(2, sequence), "enough"))
        assert await kinds_of_next_batch(stream) == ["cancel", "ends_acknowledged"]
    stream.put_command(AcknowledgeEnd(stream, Token(1, 3), patient=True))
    with anyio.move_on_after(0.05):
        await stream.outbox.next_batch()
        pytest.fail("it went alone")


async def test_the_acknowledgement_of_an_end_goes_alone_where_no_company_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "COMPANY_WAIT", 0.01)
    stream = ManagerStream("m")
    for sequence in range(3):
        stream.put_command(AcknowledgeEnd(stream, Token(1, sequence), patient=True))
        assert await kinds_of_next_batch(stream) == ["ends_acknowledged"]


async def test_many_acknowledgements_of_ends_are_company_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "COMPANY_WAIT", 3600.0)
    stream = ManagerStream("m")
    for sequence in range(outbox.COMPANY):
        stream.put_command(AcknowledgeEnd(stream, Token(1, sequence), patient=True))
    assert await kinds_of_next_batch(stream) == ["ends_acknowledged"]


async def test_the_acknowledgement_of_an_end_that_is_waited_for_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "COMPANY_WAIT", 3600.0)
    stream = ManagerStream("m")
    stream.put_command(AcknowledgeEnd(stream, Token(1, 1), patient=True))
    stream.put_command(AcknowledgeEnd(stream, Token(1, 2)))
    assert await kinds_of_next_batch(stream) == ["ends_acknowledged"]


async def test_a_refusal_names_its_item_beside_those_that_were_accepted() -> None:
    stream = ClientStream()
    stream.put_result(1, None)
    stream.put_result(2, RefusedError(RefusalCode.NOT_FOUND, "job_id", "j", "names no open job"))
    stream.put_result(3, None)
    batch = await next_batch(stream)
    assert batch is not None
    assert list(batch.accepted) == [1, 3]
    assert [(result.sequence, result.status.code) for result in batch.results] == [(2, RefusalCode.NOT_FOUND)]


async def test_outcomes_arrive_as_they_were_encoded() -> None:
    stream = ClientStream()
    for size in (0, 100, 1000, 100_000):
        stream.put_outcome(outcome(size))
    batch = await next_batch(stream)
    assert batch is not None
    assert [len(each.failed.message) for each in batch.outcomes] == [0, 100, 1000, 100_000]


async def test_ends_of_several_epochs_are_acknowledged_together() -> None:
    stream = ManagerStream("m")
    for token in (Token(2, 5), Token(1, 7), Token(2, 300)):
        stream.put_command(AcknowledgeEnd(stream, token))
    with anyio.fail_after(20.0):
        batch = await stream.outbox.next_batch()
    assert batch is not None
    told = [item.ends_acknowledged for item in manager_service_pb2.ManagerSessionResponse.FromString(batch).items]
    assert [(each.epoch, list(each.sequences)) for each in told] == [(2, [5, 300]), (1, [7])]
