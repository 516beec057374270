"""Which call a request repeats, of those with an equal body."""

from __future__ import annotations

import pytest
from callsheet.gateway.server.call_store import CallRow
from callsheet.gateway.server.retries import (
    ANSWERED_S,
    REFUSED_S,
    CallEntry,
    CallMark,
    CallState,
    RememberedCalls,
    mark_of,
    repeated,
)


def done(number: int, retries: int = 0, *, answered: bool = True, ended_at: float = 0.0) -> CallEntry:
    row = CallRow(number, "d", f"a{number}", turn=number)
    return CallEntry("d", CallState.DONE, row, retries, answered, ended_at)


def refused(retries: int = 0) -> CallEntry:
    return CallEntry("d", CallState.FAILED, retries=retries, ended_at=0.0)


def begun() -> CallEntry:
    return CallEntry("d", CallState.BEGUN, CallRow(9, "d", "a9"), ended_at=0.0)


@pytest.mark.parametrize(
    ("entries", "retries", "now", "place"),
    [
        ([], 1, 0.0, None),
        ([done(0)], 1, 0.0, 0),
        # What was repeated once is repeated by a higher count only.
        ([done(0, 1)], 1, 0.0, None),
        ([done(0, 1)], 2, 0.0, 0),
        # What was refused goes before what was answered, and what was sampled before what was refused.
        ([done(0), refused(), done(1)], 1, 0.0, 1),
        ([refused(), done(0, answered=False)], 1, 0.0, 1),
        ([refused(), begun(), refused()], 1, 0.0, 1),
        # The highest count is the nearest, whoever else was refused, or came late.
        ([done(0, 1), refused()], 2, 0.0, 0),
        ([refused(0), refused(2), refused(1)], 3, 0.0, 1),
        ([done(0), done(1)], 1, 0.0, 1),
        ([done(0)], 1, ANSWERED_S + 1, None),
        ([refused()], 1, REFUSED_S + 1, None),
        ([begun()], 1, ANSWERED_S * 9, 0),
        # Turn 7 was continued: its client has its reply.
        ([done(7)], 1, 0.0, None),
    ],
)
def test_a_retry_repeats_one_call(entries: list[CallEntry], retries: int, now: float, place: int | None) -> None:
    found = repeated(entries, CallMark("d", retries), now, lambda turn: turn == 7)
    assert found is (None if place is None else entries[place])


def test_a_key_names_its_call_for_ever() -> None:
    entry = done(7, 3)
    assert repeated([entry], CallMark("d", 0, is_named=True), ANSWERED_S * 9, lambda _: True) is entry


def test_what_a_request_tells_of_its_call() -> None:
    plain = mark_of("/p", b"{}", {})
    assert (plain.retries, plain.is_named) == (0, False)
    assert mark_of("/p", b"{}", {"x-stainless-retry-count": "2"}) == CallMark(plain.digest, 2)
    named = mark_of("/p", b"{}", {"idempotency-key": "k"})
    assert named.is_named
    assert len({plain.digest, named.digest, mark_of("/q", b"{}", {}).digest}) == 3
    for odd in ("-1", "x", "", "9" * 5000):
        assert 0 <= mark_of("/p", b"{}", {"x-stainless-retry-count": odd}).retries < 10_000


def test_the_oldest_that_has_ended_is_forgotten() -> None:
    calls = RememberedCalls(2)
    first, second, third = (done(number) for number in range(3))
    for entry in (first, second, third):
        calls.add(entry)
    assert (calls.of("d"), len(calls)) == ((second, third), 2)
    calls.remove(first)
    calls.remove(third)
    calls.remove(second)
    assert (calls.of("d"), len(calls)) == ((), 0)
