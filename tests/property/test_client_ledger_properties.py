"""Whatever streams do, every item of a session ends exactly once, and a resume keeps the order."""

from __future__ import annotations

import re

from callsheet.client.errors import CallsheetError
from callsheet.client.session.ledger import Item, Ledger
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test


class _Counter:
    """Counts what a waiter is told."""

    def __init__(self) -> None:
        self.accepted = 0
        self.ends: list[str | CallsheetError | None] = []

    def accept(self) -> None:
        self.accepted += 1

    def settle(self, ended: str | CallsheetError | None) -> None:
        self.ends.append(ended)


class LedgerAgainstAnUnreliableScheduler(RuleBasedStateMachine):
    """A scheduler that keeps its promises behind streams that break at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger[str] = Ledger()
        self.items: dict[int, Item[str]] = {}
        self.counters: dict[int, _Counter] = {}
        self.on_the_wire: list[int] = []
        self.known: set[int] = set()
        self.ended: set[int] = set()
        self.to_client: list[tuple[str, int]] = []
        self.sent_on_stream: list[int] = []

    @rule(is_submit=st.booleans())
    def add(self, is_submit: bool) -> None:
        sequence = len(self.items) + 1
        counter = _Counter()
        item: Item[str] = Item(
            sequence, f"<{sequence}>".encode(), counter, ("job", str(sequence)) if is_submit else None
        )
        self.items[sequence], self.counters[sequence] = item, counter
        self.ledger.add(item)

    @rule()
    def write(self) -> None:
        sent = [int(number) for number in re.findall(rb"<(\d+)>", self.ledger.next_batch())]
        self.on_the_wire += sent
        self.sent_on_stream += sent

    @rule(count=st.integers(1, 5))
    def scheduler_reads(self, count: int) -> None:
        for sequence in self.on_the_wire[:count]:
            self.known.add(sequence)
            self.to_client.append(("result", sequence))
            if sequence in self.ended:
                self.to_client.append(("outcome", sequence))
        del self.on_the_wire[:count]

    @rule(data=st.data())
    def an_action_ends(self, data: st.DataObject) -> None:
        running = sorted(n for n in self.known - self.ended if self.items[n].key)
        if running:
            sequence = data.draw(st.sampled_from(running))
            self.ended.add(sequence)
            if sequence in self.sent_on_stream and sequence not in self.on_the_wire:
                self.to_client.append(("outcome", sequence))

    @rule(count=st.integers(1, 5), twice=st.booleans())
    def client_reads(self, count: int, twice: bool) -> None:
        for what, sequence in self.to_client[:count] * (2 if twice else 1):
            if what == "result":
                self.ledger.result(sequence, None)
            else:
                self.ledger.outcome(("job", str(sequence)), f"outcome {sequence}")
        del self.to_client[:count]

    @rule()
    def the_stream_breaks(self) -> None:
        self.on_the_wire, self.to_client, self.sent_on_stream = [], [], []
        self.ledger.resume()

    @invariant()
    def nothing_ends_twice_or_wrongly(self) -> None:
        for sequence, counter in self.counters.items():
            assert counter.accepted <= 1
            assert counter.ends in ([], [f"outcome {sequence}" if self.items[sequence].key else None])

    @invariant()
    def one_stream_carries_items_in_order(self) -> None:
        assert self.sent_on_stream == sorted(set(self.sent_on_stream))

    def teardown(self) -> None:
        """At last all goes well for one stream; then nothing may be open."""
        self.the_stream_breaks()
        self.write()
        self.scheduler_reads(len(self.items) + 1)
        self.ended |= {n for n in self.known if self.items[n].key}
        self.to_client += [("outcome", n) for n in sorted(self.ended)]
        self.client_reads(len(self.to_client) + 1, False)
        assert all(len(counter.ends) == 1 for counter in self.counters.values())
        assert len(self.ledger) == 0


def test_every_item_ends_exactly_once() -> None:
    run_state_machine_as_test(
        LedgerAgainstAnUnreliableScheduler,
        settings=settings(max_examples=60, stateful_step_count=40),
    )
