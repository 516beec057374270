"""From the core's facts about a finished action to the Outcome that clients get."""

from __future__ import annotations

from callsheet.scheduler.core.commands import Cancellation, Expiry, OutcomeFacts
from callsheet.scheduler.core.events import AttemptFailed, AttemptSucceeded
from callsheet.v1 import outcome_pb2
from google.protobuf import timestamp_pb2


def encode_outcome(facts: OutcomeFacts) -> tuple[outcome_pb2.Outcome, bytes]:
    """The Outcome and its bytes; the core's `OutcomeEncoder`."""
    outcome = outcome_pb2.Outcome(attempts=facts.attempts, manager_id=facts.manager_id)
    outcome.key.job_id, outcome.key.action_id = facts.key
    match facts.result:
        case AttemptSucceeded(result=outcome_pb2.Succeeded() as succeeded):
            outcome.succeeded.CopyFrom(succeeded)
        case AttemptFailed() as failed:
            _fill_failed(outcome.failed, failed)
        case Cancellation(reason=reason, partial=partial):
            outcome.cancelled.reason = reason
            if isinstance(partial, outcome_pb2.Succeeded):
                outcome.cancelled.partial.CopyFrom(partial)
        case Expiry(timeout=timeout):
            outcome.expired.timeout = outcome_pb2.TimeoutKind.ValueType(timeout)
        case unexpected:
            raise TypeError(f"{unexpected!r} is no result of an action")
    _fill_timeline(outcome.timeline, facts)
    if isinstance(facts.usage, outcome_pb2.Usage):
        outcome.usage.CopyFrom(facts.usage)
    return outcome, outcome.SerializeToString()


def _fill_failed(message: outcome_pb2.Failed, failed: AttemptFailed) -> None:
    message.kind = outcome_pb2.FailureKind.ValueType(failed.kind)
    message.reason, message.message = failed.reason, failed.message
    message.timeout = outcome_pb2.TimeoutKind.ValueType(failed.timeout)
    message.retry_after_s = failed.retry_after
    if isinstance(failed.partial, outcome_pb2.Succeeded):
        message.partial.CopyFrom(failed.partial)


def _fill_timeline(timeline: outcome_pb2.Timeline, facts: OutcomeFacts) -> None:
    fill_timestamp(timeline.submitted, facts.submitted)
    fill_timestamp(timeline.ended, facts.ended)
    if facts.first_dispatched:
        fill_timestamp(timeline.first_dispatched, facts.first_dispatched)
    if facts.dispatched:
        fill_timestamp(timeline.dispatched, facts.dispatched)
    if facts.started:
        fill_timestamp(timeline.started, facts.started)
    timeline.queue_s = facts.queue_s
    timeline.execution_s = facts.execution_s
    timeline.paused_s = facts.paused_s
    if facts.start_wait_s:
        timeline.start_wait_s = facts.start_wait_s
    total = facts.ended - facts.submitted
    timeline.overhead_s = max(total - facts.queue_s - facts.execution_s - facts.paused_s, 0.0)


def fill_timestamp(message: timestamp_pb2.Timestamp, time: float) -> None:
    """Sets a Timestamp from seconds since the epoch."""
    message.seconds = seconds = int(time)
    message.nanos = int((time - seconds) * 1e9)
