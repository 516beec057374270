"""From the core's facts about a finished action to the Outcome that clients get, encoded."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from callsheet.scheduler.core.words.commands import Cancellation, Expiry, OutcomeFacts
from callsheet.scheduler.core.words.events import AttemptFailed, AttemptSucceeded
from callsheet.scheduler.history.messages import fill_time
from callsheet.v1 import outcome_pb2
from callsheet.wire.encoded_fields import embedded, tag

_SUCCEEDED: Final = tag(outcome_pb2.Outcome.SUCCEEDED_FIELD_NUMBER)
_STEPS = ("submitted", "first_dispatched", "dispatched", "started", "ended")


def encode_outcome(facts: OutcomeFacts) -> bytes:
    """The core's `OutcomeEncoder`: an Outcome."""
    outcome = outcome_pb2.Outcome()
    key, succeeded = outcome.key, b""
    key.job_id, key.action_id = facts.key
    match facts.result:
        case AttemptSucceeded(result=result):
            succeeded = embedded(_SUCCEEDED, result)
        case AttemptFailed() as failed:
            _fill_failed(outcome.failed, failed)
        case Cancellation(reason=reason, partial=partial):
            outcome.cancelled.reason = reason
            if partial is not None:
                outcome.cancelled.partial.MergeFromString(partial)
        case Expiry(timeout=timeout):
            outcome.expired.timeout = outcome_pb2.TimeoutKind.ValueType(timeout)
        case unexpected:
            raise TypeError(f"{unexpected!r} is no result of an action")
    _fill_durations(outcome.timeline, facts)
    if facts.usage is not None:
        outcome.usage.cpu_s, outcome.usage.peak_memory_bytes = facts.usage.cpu_s, facts.usage.peak_memory_bytes
    if facts.cost:
        outcome.usage.cost.held.update(facts.cost.held)
        outcome.usage.cost.used.update(facts.cost.used)
    # Parts of a message, joined, are the message: see `encoded_fields`.
    times = (facts.submitted, facts.first_dispatched, facts.dispatched, facts.started, facts.ended)
    return outcome.SerializeToString() + succeeded + _encode_course(facts.attempts, facts.manager_id, times)


@lru_cache(maxsize=1024)
def _encode_course(attempts: int, manager_id: str, times: tuple[float, ...]) -> bytes:
    """The part of an Outcome that actions which went through the scheduler together have in common.

    Args:
        attempts: Attempts that were dispatched.
        manager_id: The manager of the last one.
        times: Seconds since the epoch of each of `_STEPS`, 0 for one that was never reached.
    """
    outcome = outcome_pb2.Outcome(attempts=attempts, manager_id=manager_id)
    timeline = outcome.timeline
    for step, time in zip(_STEPS, times, strict=True):
        if time:
            fill_time(getattr(timeline, step), time)
    return outcome.SerializeToString()


def _fill_failed(message: outcome_pb2.Failed, failed: AttemptFailed) -> None:
    message.kind = outcome_pb2.FailureKind.ValueType(failed.kind)
    message.reason, message.message = failed.reason, failed.message
    message.timeout = outcome_pb2.TimeoutKind.ValueType(failed.timeout)
    message.retry_after_s = failed.retry_after
    if failed.partial is not None:
        message.partial.MergeFromString(failed.partial)


def _fill_durations(timeline: outcome_pb2.Timeline, facts: OutcomeFacts) -> None:
    timeline.queue_s = facts.queue_s
    timeline.execution_s = facts.execution_s
    if facts.start_wait_s:
        timeline.start_wait_s = facts.start_wait_s
    timeline.overhead_s = facts.overhead_s
    if facts.waited_s:
        timeline.waited_s.update(facts.waited_s)
