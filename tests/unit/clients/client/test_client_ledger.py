"""What a session owes its callers."""

from __future__ import annotations

from callsheet.client import (
    RefusalCode,
)
from callsheet.client.errors import CallsheetError, ConnectionLostError, refused
from callsheet.client.session.ledger import MAX_BATCH_BYTES, MAX_BATCH_ITEMS, Item, Ledger


class _Recorder:
    """Remembers what a waiter is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def accept(self) -> None:
        self.told.append("accepted")

    def settle(self, ended: str | CallsheetError | None) -> None:
        self.told.append(ended)


def _item(
    sequence: int,
    *,
    key: str | None = None,
    message: bytes | None = None,
    replay_success: frozenset[RefusalCode] = frozenset(),
) -> tuple[Item[str], _Recorder]:
    recorder = _Recorder()
    body = message if message is not None else f"<{sequence}>".encode()
    return Item(sequence, body, recorder, ("job", key) if key else None, replay_success), recorder


def _ledger(*items: Item[str]) -> Ledger[str]:
    ledger: Ledger[str] = Ledger()
    for item in items:
        ledger.add(item)
    return ledger


def test_a_batch_is_bounded_in_items_and_bytes() -> None:
    ledger = _ledger(*(_item(n, message=b"x")[0] for n in range(MAX_BATCH_ITEMS + 1)))
    assert [len(ledger.next_batch()), len(ledger.next_batch())] == [MAX_BATCH_ITEMS, 1]
    half = MAX_BATCH_BYTES // 2 + 1
    ledger = _ledger(*(_item(n, message=bytes([n]) * half)[0] for n in range(3)))
    assert [ledger.next_batch()[0] for _ in range(3)] == [0, 1, 2]


def test_an_item_above_the_bound_goes_alone() -> None:
    ledger = _ledger(_item(1, message=b"x" * (MAX_BATCH_BYTES + 1))[0], _item(2)[0])
    assert len(ledger.next_batch()) == MAX_BATCH_BYTES + 1
    assert ledger.next_batch() == b"<2>"


def test_an_outcome_before_the_result_waits_for_it() -> None:
    item, told = _item(1, key="a")
    ledger = _ledger(item)
    ledger.outcome(("job", "a"), "outcome")
    assert told.told == []
    ledger.result(1, None)
    assert told.told == ["accepted", "outcome"]


def test_an_outcome_of_another_body_does_not_hide_the_refusal() -> None:
    item, told = _item(1, key="a")
    ledger = _ledger(item)
    error = refused(RefusalCode.ALREADY_EXISTS)
    ledger.outcome(("job", "a"), "outcome of the other body")
    ledger.result(1, error)
    assert told.told == [error]


def test_a_resent_submit_that_is_refused_ends() -> None:
    item, told = _item(1, key="a")
    ledger = _ledger(item)
    ledger.next_batch()
    ledger.result(1, None)
    ledger.resume()
    error = refused(RefusalCode.NOT_FOUND)
    ledger.result(1, error)
    assert told.told == ["accepted", error]


def test_a_refusal_that_means_success_does_so_only_on_a_replay() -> None:
    error = refused(RefusalCode.NOT_FOUND)
    for times_sent, expected in ((1, [error]), (2, ["accepted", None])):
        item, told = _item(1, replay_success=frozenset({RefusalCode.NOT_FOUND}))
        ledger = _ledger(item)
        for _ in range(times_sent):
            ledger.resume()
            ledger.next_batch()
        ledger.result(1, error)
        assert told.told == expected


def test_a_dropped_item_is_neither_sent_nor_told() -> None:
    item, told = _item(1, key="a")
    ledger = _ledger(item)
    ledger.drop(item)
    assert ledger.next_batch() == b""
    ledger.result(1, None)
    ledger.outcome(("job", "a"), "outcome")
    assert told.told == []


def test_fail_all_ends_everything() -> None:
    (first, told_first), (second, told_second) = _item(1), _item(2, key="a")
    ledger = _ledger(first, second)
    error = ConnectionLostError("gone")
    ledger.fail_all(error)
    assert told_first.told == told_second.told == [error]
    assert (len(ledger), ledger.waiting) == (0, 0)
    ledger.resume()
    assert ledger.next_batch() == b""
