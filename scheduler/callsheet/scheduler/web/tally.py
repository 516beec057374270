"""Counts events as they happen because the core's state forgets them. No I/O and no clock; cheap for each action."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from callsheet.scheduler.core.state.scheduler_state import OutcomeEncoder
from callsheet.scheduler.core.words.commands import OutcomeFacts
from callsheet.scheduler.core.words.events import AttemptFailed
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusalCode

BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Upper bounds of the buckets of all histograms, in seconds: from a dispatch to a long test suite."""


@dataclass(slots=True)
class Histogram:
    """How often values fell into each bucket; the last one has those above all bounds.

    Attributes:
        counts: By bucket.
        total: Of all values.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.total += value


@dataclass(slots=True)
class ActionTimes:
    """Times of a kind's actions, split by how they were spent."""

    queue: Histogram = field(default_factory=Histogram)
    execution: Histogram = field(default_factory=Histogram)
    overhead: Histogram = field(default_factory=Histogram)
    waiting: Histogram = field(default_factory=Histogram)
    waited_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Tally:
    """Counts since this scheduler started.

    Attributes:
        ends: Actions that got their outcome, by kind, state and kind of failure, which is empty where there is none.
        times: Where their time went, by kind.
        refusals: Refused requests, items of sessions included, by code.
        messages: gRPC messages of our services, by rpc and by whether they were read or written.
        spans: Actions whose spans were sent to a collector or lost, by which of these; see `SpanSender`.
    """

    def __init__(self) -> None:
        self.ends: Counter[tuple[ActionKind, str, str]] = Counter()
        self.times: dict[ActionKind, ActionTimes] = {kind: ActionTimes() for kind in ActionKind}
        self.refusals: Counter[RefusalCode] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()
        self.spans: Counter[str] = Counter()

    def finished(self, facts: OutcomeFacts) -> None:
        """Counts an action that has its outcome."""
        result = facts.result
        failure = result.kind.name.lower() if isinstance(result, AttemptFailed) else ""
        self.ends[facts.kind, facts.state.value, failure] += 1
        times = self.times[facts.kind]
        times.queue.add(facts.queue_s)
        if facts.attempts:
            times.execution.add(facts.execution_s)
        times.waiting.add(sum(facts.waited_s.values()))
        for cause, seconds in facts.waited_s.items():
            times.waited_s[cause] += seconds
        times.overhead.add(facts.overhead_s)

    def counting(self, encode: OutcomeEncoder) -> OutcomeEncoder:
        """Returns an encoder that counts each outcome, of which the core encodes each one once."""

        def count_and_encode(facts: OutcomeFacts) -> bytes:
            self.finished(facts)
            return encode(facts)

        return count_and_encode

    def refused(self, code: RefusalCode) -> None:
        """Counts a refused request."""
        self.refusals[code] += 1
