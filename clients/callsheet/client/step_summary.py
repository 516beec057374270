"""A trainer's log of a step: the parts of its actions' time, failures, staleness of tokens. No I/O."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from callsheet.client.words.outcomes import Cancelled, Expired, Failed, Outcome, Succeeded
from callsheet.timing.waits import CAUSES, known
from callsheet.v1 import outcome_pb2
from callsheet.v1.action_values import ActionKind
from callsheet.v1.common_values import Cost
from callsheet.v1.outcome_values import FAILURE_KIND, FailureKind, GenerateResult
from callsheet.v1.values import TIMED, mapping

MAX_JOBS = 1000
"""Jobs of which one client keeps a tally; the one that was counted longest ago is forgotten first."""

_PHASES = {
    ActionKind.GENERATE: "generation",
    ActionKind.ENV_RESET: "environment",
    ActionKind.ENV_STEP: "environment",
    ActionKind.TOOL_CALL: "tools",
    ActionKind.REWARD: "reward",
}
_ENDS: dict[type[object], str] = {Succeeded: "succeeded", Failed: "failed", Cancelled: "cancelled", Expired: "expired"}
_USED = ("cpu", "memory", "tokens_in", "tokens_cached", "tokens_out", "calls")
_FAILURES = tuple(kind.value for kind in FailureKind if kind is not FailureKind.UNSPECIFIED)


class EndedAction(NamedTuple):
    """A summary's share of an ended action. A tuple, as there is one for each outcome that arrives.

    Attributes:
        kind: Its kind.
        end: "succeeded", "failed", "cancelled" or "expired".
        queue_s: As in `Timeline`, and so are the other times.
        attempts: Attempts that were dispatched.
        failure: Due to whom it failed; None if it did not.
        spans: Of a generation: policy versions and how many tokens each made, partial results included.
        cost: What all of its attempts cost.
    """

    kind: ActionKind
    end: str
    queue_s: float = 0.0
    execution_s: float = 0.0
    overhead_s: float = 0.0
    start_wait_s: float = 0.0
    attempts: int = 1
    failure: FailureKind | None = None
    spans: tuple[tuple[int, int], ...] = ()
    waited_s: Mapping[str, float] = {}
    cost: Cost = Cost()


def ended_by_message(kind: ActionKind, message: outcome_pb2.Outcome) -> EndedAction:
    """Takes it from an outcome of the contract, without decoding results."""
    end = message.WhichOneof("result") or "failed"
    failure = FAILURE_KIND.get(message.failed.kind, FailureKind.UNSPECIFIED) if end == "failed" else None
    spans: tuple[tuple[int, int], ...] = ()
    if kind is ActionKind.GENERATE and end != "expired":
        result = message.succeeded if end == "succeeded" else getattr(message, end).partial
        spans = tuple((span.version, span.end - span.begin) for span in result.generate.policy_versions)
    told = message.timeline
    times = (told.queue_s, told.execution_s, told.overhead_s, told.start_wait_s)
    waited = mapping(told.waited_s)
    return EndedAction(
        kind, end, *times, message.attempts, failure, spans, waited, Cost.from_message(message.usage.cost)
    )


def ended_by_outcome(kind: ActionKind, outcome: Outcome[Any]) -> EndedAction:
    """Takes it from an outcome."""
    failure = outcome.kind if isinstance(outcome, Failed) else None
    result = outcome.value if isinstance(outcome, Succeeded) else getattr(outcome, "partial", None)
    spans = result.policy_versions if isinstance(result, GenerateResult) else ()
    counts = tuple((span.version, span.end - span.begin) for span in spans)
    told = outcome.timeline
    times = (told.queue_s, told.execution_s, told.overhead_s, told.start_wait_s)
    waited, cost = told.waited_s, outcome.usage.cost
    return EndedAction(kind, _ENDS[type(outcome)], *times, outcome.attempts, failure, counts, waited, cost)


@dataclass(slots=True)
class StepTally:
    """The counts of one job between two summaries. Its size does not depend on how many actions there are.

    Attributes:
        began: When it began, by a clock that never goes back.
        newest_version: The newest policy version that is known to be published, or to have made tokens.
    """

    began: float
    newest_version: int = 0
    times_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    actions: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    used: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    retried: int = 0
    tokens: int = 0
    stale_tokens: int = 0
    lag_tokens: int = 0
    max_lag: int = 0
    mixed: int = 0

    def add(self, action: EndedAction) -> None:
        """Counts an action that has ended."""
        times = self.times_s
        times[_PHASES[action.kind]] += action.execution_s
        times["queue"] += action.queue_s
        times["waiting"] += action.queue_s + sum(action.waited_s.values())
        for cause, seconds in action.waited_s.items():
            times[f"waiting_{known(cause)}"] += seconds
        times["start_waiting"] += action.start_wait_s
        times["overhead"] += action.overhead_s
        self.actions[action.kind.value] += 1
        self.ends[action.end] += 1
        self.retried += action.attempts > 1
        if action.failure is not None:
            self.failures[action.failure.value] += 1
        for part, amounts in ((self.held, action.cost.held), (self.used, action.cost.used)):
            for resource, amount in amounts.items():
                part[resource] += amount
        if action.spans:
            self._add_tokens(action.spans)

    def _add_tokens(self, spans: tuple[tuple[int, int], ...]) -> None:
        versions = {version for version, _ in spans}
        self.newest_version = max(self.newest_version, *versions)
        self.mixed += len(versions) > 1
        for version, count in spans:
            lag = self.newest_version - version
            self.tokens += count
            self.lag_tokens += lag * count
            self.stale_tokens += count if lag else 0
            self.max_lag = max(self.max_lag, lag)

    def summary(self, now: float, prices: Mapping[str, float]) -> dict[str, float]:
        """Returns all of it, as a flat dict of numbers. Every name is in every summary, so that a log has no gaps."""
        calls = sum(amount for resource, amount in self.used.items() if resource.startswith("calls:"))
        waits = ("waiting", "queue", "start_waiting", *(f"waiting_{cause}" for cause in CAUSES))
        phases = (*dict.fromkeys(_PHASES.values()), *waits, "overhead")
        return {
            "wall_s": now - self.began,
            **_named("time_s/", phases, self.times_s),
            **_named("actions/", (kind.value for kind in _PHASES), self.actions),
            **_named("ended/", _ENDS.values(), self.ends),
            **_named("failures/", _FAILURES, self.failures),
            **_named("held/", TIMED, self.held),
            **_named("used/", _USED, {**self.used, "calls": calls}),
            "money": Cost(self.held, self.used).money(prices),
            "retried": self.retried,
            "tokens/generated": self.tokens,
            "staleness/policy_version": self.newest_version,
            "staleness/mean": self.lag_tokens / self.tokens if self.tokens else 0.0,
            "staleness/max": self.max_lag,
            "staleness/stale_tokens": self.stale_tokens,
            "staleness/mixed_generations": self.mixed,
        }


def _named(prefix: str, names: Iterable[str], counted: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}{name}": counted.get(name, 0) for name in names}


class StepTallies:
    """The tallies of a client's jobs. May be used from several threads and event loops.

    Attributes:
        prices: Money for one unit of each resource, as the scheduler told it last.
    """

    def __init__(self) -> None:
        self.prices: Mapping[str, float] = {}
        self._lock = threading.Lock()
        self._tallies: OrderedDict[str, StepTally] = OrderedDict()

    def ended(self, job_id: str, action: EndedAction) -> None:
        """Counts an action that has ended."""
        with self._lock:
            self._tally(job_id).add(action)

    def published(self, job_id: str, version: int) -> None:
        """Takes note of a new policy version."""
        with self._lock:
            tally = self._tally(job_id)
            tally.newest_version = max(tally.newest_version, version)

    def begin(self, job_id: str, *, anew: bool = False) -> None:
        """Begins the first step of a job; `anew` if an earlier job of the id has no part in it."""
        with self._lock:
            if anew:
                self._tallies.pop(job_id, None)
            self._tally(job_id)

    def take(self, job_id: str) -> dict[str, float]:
        """Returns the summary of a job's step, and begins the next one."""
        with self._lock:
            now = time.monotonic()
            tally = self._tally(job_id)
            self._tallies[job_id] = StepTally(now, tally.newest_version)
            return tally.summary(now, self.prices)

    def _tally(self, job_id: str) -> StepTally:
        tally = self._tallies.get(job_id)
        if tally is None:
            tally = self._tallies[job_id] = StepTally(time.monotonic())
            if len(self._tallies) > MAX_JOBS:
                self._tallies.popitem(last=False)
        self._tallies.move_to_end(job_id)
        return tally
