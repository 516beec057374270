"""What the demo measures of each action, and the figures made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from callsheet.benchmarks.measuring.statistics import percentile
from callsheet.client import ActionKind
from callsheet.client.words.outcomes import Cancelled, Expired, Failed, Outcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action that has ended; times in seconds.

    Attributes:
        kind: Its kind.
        label: Its class of work.
        failure: None if it succeeded; else the kind of its failure, or "cancelled" or "expired".
        queue_s: Waiting to be dispatched.
        waiting_s: Waiting after that: for cores, an image, an engine's place.
        execution_s: Executing.
        overhead_s: Everything else between submit and outcome: transport, dispatch, journal.
        cpu_s: CPU seconds used.
        core_s: Core-seconds granted to it.
    """

    kind: ActionKind
    label: str
    failure: str | None
    queue_s: float
    waiting_s: float
    execution_s: float
    overhead_s: float
    cpu_s: float
    core_s: float

    @property
    def act_s(self) -> float:
        """Its completion time: queue, waiting, execution and overhead."""
        return self.queue_s + self.waiting_s + self.execution_s + self.overhead_s

    @property
    def is_external(self) -> bool:
        """Whether it is anything but inference by the policy."""
        return self.kind is not ActionKind.GENERATE


def record_of(kind: ActionKind, label: str, outcome: Outcome[T]) -> ActionRecord:
    """Takes the figures out of an outcome."""
    failure: str | None = None
    if isinstance(outcome, Failed):
        failure = outcome.kind.value
    elif isinstance(outcome, Cancelled):
        failure = "cancelled"
    elif isinstance(outcome, Expired):
        failure = "expired"
    timeline, usage = outcome.timeline, outcome.usage
    return ActionRecord(
        kind=kind,
        label=label,
        failure=failure,
        queue_s=timeline.queue_s,
        waiting_s=timeline.waiting_s,
        execution_s=timeline.execution_s,
        overhead_s=timeline.overhead_s,
        cpu_s=usage.cpu_s,
        core_s=usage.cost.held.get("cpu", 0.0),
    )


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Figures of the actions of one kind; times in seconds."""

    count: int
    queue_p50_s: float
    queue_p99_s: float
    waiting_p50_s: float
    waiting_p99_s: float
    exec_p50_s: float
    exec_p99_s: float
    overhead_p50_s: float
    overhead_p99_s: float
    act_mean_s: float
    act_p99_s: float


def figures_by_kind(records: Sequence[ActionRecord]) -> dict[str, KindFigures]:
    """Figures of each kind that there are actions of, by its name, in the order of `ActionKind`."""
    by_kind = {kind: [record for record in records if record.kind is kind] for kind in ActionKind}
    return {kind.value: _figures(of_kind) for kind, of_kind in by_kind.items() if of_kind}


def _figures(records: Sequence[ActionRecord]) -> KindFigures:
    times = {
        "queue": [record.queue_s for record in records],
        "waiting": [record.waiting_s for record in records],
        "exec": [record.execution_s for record in records],
        "overhead": [record.overhead_s for record in records],
    }
    return KindFigures(
        count=len(records),
        **{f"{name}_p{percent}_s": percentile(of, percent) for name, of in times.items() for percent in (50, 99)},
        act_mean_s=mean_act_s(records),
        act_p99_s=percentile([record.act_s for record in records], 99),
    )


def mean_act_s(records: Iterable[ActionRecord]) -> float:
    """Mean completion time; 0 if there are no actions."""
    times = [record.act_s for record in records]
    return fmean(times) if times else 0.0


def failures_by_kind(records: Iterable[ActionRecord]) -> dict[str, int]:
    """Failed actions by kind of failure, most frequent first."""
    return dict(Counter(record.failure for record in records if record.failure is not None).most_common())
