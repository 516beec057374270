"""From the record of a finished action to spans of it and of the parts of its time, without contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.records import ActionFinished, ActionSummary
from callsheet.timing.waits import Cause
from callsheet.v1 import outcome_pb2

Value = str | int | float | tuple[int, ...]
_UNKNOWN: Final = ActionSummary(
    "", "", ActionKind.GENERATE, "", "", "", "", 0, "", "", 0.0, 0.0, 0.0, 0.0, "", "", "", {}, {}, []
)
# These are waited for before the last dispatch, and all else after it.
_BEFORE_DISPATCH: Final = (Cause.ATTEMPTS.value, Cause.SCHEDULER.value)
_SHORTEST_NS: Final = 1000


class SpanFacts(NamedTuple):
    """A span; times in nanoseconds since the epoch. The `error` has stable words, and is empty if nothing failed."""

    name: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    parts: tuple[SpanFacts, ...] = ()
    error: str = ""


def span_of(record: ActionFinished) -> SpanFacts:
    """The span of an action, with those of its time as its parts."""
    outcome, summary = outcome_pb2.Outcome.FromString(record.outcome), record.summary or _UNKNOWN
    kind, error = ActionKind(summary.kind).name.lower(), _error_of(outcome)
    ended = getattr(outcome, outcome.WhichOneof("result") or "succeeded")
    generated: outcome_pb2.GenerateResult = getattr(ended, "partial", outcome.succeeded).generate
    told: Mapping[str, Value] = {
        "kind": kind,
        "label": summary.label,
        "job_id": record.job_id,
        "trajectory_id": record.trajectory_id,
        "action_id": record.action_id,
        "manager_id": outcome.manager_id,
        "attempts": outcome.attempts,
        "outcome": record.state,
        "failure": error,
        "cpu_s": outcome.usage.cpu_s,
        "tokens_in": round(outcome.usage.cost.used.get("tokens_in", 0.0)),
        "tokens_out": len(generated.token_ids),
        "tokens_cached": generated.cached_tokens,
        "policy_versions": tuple(dict.fromkeys(span.version for span in generated.policy_versions)),
    }
    return SpanFacts(
        f"{kind} {summary.label}".rstrip(),
        outcome.timeline.submitted.ToNanoseconds(),
        outcome.timeline.ended.ToNanoseconds(),
        {f"callsheet.{name}": value for name, value in told.items() if value not in ("", 0, ())},
        _parts(outcome.timeline),
        error,
    )


def _error_of(outcome: outcome_pb2.Outcome) -> str:
    if outcome.HasField("expired"):
        timeout = outcome_pb2.TimeoutKind.Name(outcome.expired.timeout)
        return f"expired {timeout.removeprefix('TIMEOUT_KIND_').lower()}"
    kind = outcome_pb2.FailureKind.Name(outcome.failed.kind).removeprefix("FAILURE_KIND_").lower()
    return f"{kind} {outcome.failed.reason}" if outcome.HasField("failed") else ""


def _parts(timeline: outcome_pb2.Timeline) -> tuple[SpanFacts, ...]:
    """Returns the parts of an action's time. A timeline has their lengths and few times.

    The order is always the same. An action is queued first, then waits for attempts before the last, and is queued
    again until the last dispatch. The last attempt's execution ends with the action, and its waits come just before.
    The rest is overhead.
    """
    submitted, ended = timeline.submitted.ToNanoseconds(), timeline.ended.ToNanoseconds()
    queue, execution = round(timeline.queue_s * 1e9), round(timeline.execution_s * 1e9)
    waits = {cause: round(seconds * 1e9) for cause, seconds in sorted(timeline.waited_s.items())}
    before = {f"waiting {cause}": waits.pop(cause) for cause in _BEFORE_DISPATCH if cause in waits}
    after = {f"waiting {cause}": length for cause, length in waits.items()}
    dispatched = timeline.first_dispatched.ToNanoseconds() or ended
    again = max(queue - (dispatched - submitted), 0)
    laid_out = (
        *_in_a_row(submitted, [("queue", queue - again), *before.items()]),
        *_in_a_row(timeline.dispatched.ToNanoseconds() - again, [("queue", again)]),
        *_in_a_row(ended - execution - sum(after.values()), [*after.items(), ("execution", execution)]),
    )
    clipped = ((name, max(start, submitted), min(end, ended)) for name, start, end in laid_out)
    return tuple(SpanFacts(name, start, end, {}) for name, start, end in clipped if end - start >= _SHORTEST_NS)


def _in_a_row(start: int, lengths: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    for name, length in lengths:
        yield name, start, start + length
        start += length
