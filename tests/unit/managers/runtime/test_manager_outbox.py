"""Batches to the scheduler, ends kept for it, and the translation of results into ends."""

from __future__ import annotations

import pytest
from callsheet.managers.ends import Spent, StopOrder, StopReport, bounded, describe_end, refusal
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.fencing import Token
from callsheet.managers.reports import MAX_BATCH_BYTES, MAX_BATCH_ITEMS, Outbox, UnacknowledgedEnds
from callsheet.v1 import common_pb2, manager_service_pb2, outcome_pb2

from tests.support.dispatches import make_dispatch

GRANT = make_dispatch("a", 1, attempt=2).grant
SPENT = Spent(2.0, {"cpu": 4.0})
PARTIAL = outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=common_pb2.Blob(inline=b"part")))


def item(size: int) -> bytes:
    failed = outcome_pb2.Failed(message="x" * size)
    return manager_service_pb2.ManagerItem(ended=manager_service_pb2.AttemptEnded(failed=failed)).SerializeToString()


def take_batch(outbox: Outbox) -> manager_service_pb2.ManagerSessionRequest | None:
    batch = outbox.take_batch()
    return None if batch is None else manager_service_pb2.ManagerSessionRequest.FromString(batch)


def test_a_batch_has_at_most_1024_items() -> None:
    outbox = Outbox()
    for _ in range(MAX_BATCH_ITEMS + 1):
        outbox.put(item(0))
    first, second = take_batch(outbox), take_batch(outbox)
    assert first is not None
    assert second is not None
    assert (len(first.items), len(second.items)) == (MAX_BATCH_ITEMS, 1)
    assert take_batch(outbox) is None


def test_a_batch_has_at_most_one_mib_but_at_least_one_item() -> None:
    outbox = Outbox()
    for size in (400_000, 400_000, 400_000, 3_000_000, 10):
        outbox.put(item(size))
    batches = []
    while (batch := take_batch(outbox)) is not None:
        batches.append(batch)
    assert [len(batch.items) for batch in batches] == [2, 1, 1, 1]
    assert batches[0].ByteSize() <= MAX_BATCH_BYTES


def test_ends_are_kept_in_order_until_acknowledged() -> None:
    ends = UnacknowledgedEnds(max_ends=10, max_bytes=1 << 20)
    for sequence in (3, 1, 2):
        ends.add(Token(1, sequence), item(sequence))
    kept = [manager_service_pb2.ManagerItem.FromString(each) for each in ends.items()]
    assert [len(each.ended.failed.message) for each in kept] == [3, 1, 2]
    assert ends.acknowledge(Token(1, 1))
    assert not ends.acknowledge(Token(1, 1))
    assert (ends.get(Token(1, 1)), len(ends)) == (None, 2)


def test_ends_are_full_by_number_with_those_still_to_come() -> None:
    ends = UnacknowledgedEnds(max_ends=3, max_bytes=1 << 20)
    ends.add(Token(1, 1), item(0))
    assert not ends.full(1)
    assert ends.full(2)


def test_ends_are_full_by_size_until_one_is_acknowledged() -> None:
    ends = UnacknowledgedEnds(max_ends=100, max_bytes=1000)
    ends.add(Token(1, 1), item(900))
    ends.add(Token(1, 1), item(900))
    assert not ends.full(0)
    ends.add(Token(1, 2), item(900))
    assert ends.full(0)
    ends.acknowledge(Token(1, 1))
    assert not ends.full(0)


def end(result: AttemptResult, report: StopReport | None = None) -> manager_service_pb2.AttemptEnded:
    order = None if report is None else StopOrder(report, "for a reason")
    return describe_end(GRANT, result, order, SPENT)


def test_an_end_carries_ids_and_usage() -> None:
    ended = end(Completed(PARTIAL, outcome_pb2.Usage(cpu_s=1.5, peak_memory_bytes=7)))
    assert (ended.token, ended.key, ended.attempt, ended.body_hash) == (GRANT.token, GRANT.key, 2, b"hash")
    assert (ended.usage.cpu_s, ended.usage.peak_memory_bytes) == (1.5, 7)
    assert (dict(ended.usage.cost.held), ended.execution_s, ended.started) == ({"cpu": 4.0}, 2.0, True)
    assert ended.succeeded == PARTIAL


GIB = 1 << 30


@pytest.mark.parametrize(
    ("spent", "peak", "held", "used"),
    [
        (Spent(4.0, {"cpu": 8.0, "memory": 4 * 512.0, "gpu": 4.0}), GIB // 4, {"cpu": 8, "memory": 2, "gpu": 4}, 1),
        # What a sandbox holds at rest is its trajectory's; a command adds the rest of the demand, and of the peak.
        (Spent(4.0, {"cpu": 4.0}, rest_mib=256, thawed_mib=768), GIB // 2, {"cpu": 4, "memory": 3}, 1),
        (Spent(4.0, {"search.calls": 9.0}, rest_mib=256), GIB // 8, {}, 0),
        (Spent(0.0, {"cpu": 0.0}, rest_mib=0, thawed_mib=768), GIB, {}, 0),
    ],
)
def test_an_end_tells_what_it_cost(spent: Spent, peak: int, held: dict[str, float], used: float) -> None:
    usage = outcome_pb2.Usage(cpu_s=1.5, peak_memory_bytes=peak)
    usage.cost.used["calls:search"] = 2.0
    cost = describe_end(GRANT, Completed(PARTIAL, usage), None, spent).usage.cost
    assert dict(cost.held) == held
    assert dict(cost.used) == {"calls:search": 2.0, "cpu": 1.5} | ({"memory": used} if used else {})
    assert "cpu" not in usage.cost.used, "a result may be shared"


def test_a_result_that_came_in_spite_of_a_stop_counts() -> None:
    assert end(Completed(PARTIAL), StopReport.CANCELLED).HasField("succeeded")
    failed = outcome_pb2.Failed(kind=outcome_pb2.FAILURE_KIND_ENV, reason="set_up_failed")
    assert end(Broken(failed), StopReport.START_TO_CLOSE).failed == failed


@pytest.mark.parametrize("partial", [None, PARTIAL])
def test_a_stop_becomes_what_it_was_ordered_for(partial: outcome_pb2.Succeeded | None) -> None:
    expected = PARTIAL if partial is not None else outcome_pb2.Succeeded()
    cancelled = end(Stopped(partial), StopReport.CANCELLED).cancelled
    assert (cancelled.reason, cancelled.partial) == ("for a reason", expected)
    timeout = end(Stopped(partial), StopReport.START_TO_CLOSE).failed
    assert (timeout.kind, timeout.timeout, timeout.reason, timeout.message, timeout.partial) == (
        outcome_pb2.FAILURE_KIND_TIMEOUT,
        outcome_pb2.TIMEOUT_KIND_START_TO_CLOSE,
        "start_to_close",
        "for a reason",
        expected,
    )
    leaving = end(Stopped(partial), StopReport.MANAGER_STOPPED).failed
    assert (leaving.kind, leaving.reason, leaving.partial) == (
        outcome_pb2.FAILURE_KIND_INFRA,
        "manager_stopped",
        expected,
    )


def test_a_timeout_has_the_hint_and_a_cancel_has_none() -> None:
    assert end(Stopped(hint="a hint"), StopReport.START_TO_CLOSE).failed.message == "for a reason; a hint"
    assert end(Stopped(hint="a hint"), StopReport.CANCELLED).cancelled.reason == "for a reason"


def test_a_refusal_says_that_nothing_started() -> None:
    refused = refusal(GRANT, "stale_token", "too old")
    assert (refused.started, refused.failed.kind, refused.failed.reason) == (
        False,
        outcome_pb2.FAILURE_KIND_INFRA,
        "stale_token",
    )


def test_an_end_that_is_too_large_is_replaced() -> None:
    ended = end(Broken(outcome_pb2.Failed(message="x" * 10_000)))
    assert bounded(ended, 20_000) is ended
    smaller = bounded(ended, 1_000)
    assert smaller.ByteSize() < 1_000
    assert (smaller.token, smaller.failed.reason, smaller.usage) == (ended.token, "result_too_large", ended.usage)
