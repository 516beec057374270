"""From the messages of the contract to the client's outcomes. Pure: fetches are collected, not made."""

from __future__ import annotations

from typing import Any

from callsheet.client.codec.actions import KINDS
from callsheet.client.codec.fields import BlobReader, by_number, decode_cost, in_seconds, take_seconds
from callsheet.client.errors import ForgottenError, RefusalCode, RefusedError, refused
from callsheet.client.words.costs import NO_COST
from callsheet.client.words.outcomes import (
    Cancelled,
    Expired,
    Failed,
    FailureKind,
    Outcome,
    Reason,
    Succeeded,
    Timeline,
    TimeoutKind,
    Usage,
)
from callsheet.client.words.results import OutputStream, Result
from callsheet.v1 import common_pb2, outcome_pb2

_DECODERS = {kind.value: row.decode for kind, row in KINDS.items()}
_FAILURE_KIND = by_number(FailureKind, "FAILURE_KIND_", outcome_pb2.FailureKind)
_TIMEOUT_KIND = by_number(TimeoutKind, "TIMEOUT_KIND_", outcome_pb2.TimeoutKind)
_OUTPUT_STREAM = by_number(OutputStream, "OUTPUT_STREAM_", common_pb2.OutputStream)
_CODES = dict(enumerate(RefusalCode, start=1))


def decode_outcome(message: outcome_pb2.Outcome, blobs: BlobReader) -> Outcome[Any]:
    """Returns an outcome. If `blobs.missing` is not empty afterwards, fetch those and decode again."""
    ended: dict[str, Any] = {
        "job_id": message.key.job_id,
        "action_id": message.key.action_id,
        "timeline": _timeline(message.timeline),
        "usage": _usage(message.usage),
        "attempts": message.attempts,
        "manager_id": message.manager_id,
    }
    which = message.WhichOneof("result")
    if which == "succeeded":
        value = _result(message.succeeded, blobs)
        if value is not None:
            return Succeeded(value, **ended)
    elif which == "failed":
        return _failed(message.failed, blobs, ended)
    elif which == "cancelled":
        return Cancelled(message.cancelled.reason, _result(message.cancelled.partial, blobs), **ended)
    elif which == "expired":
        return Expired(_TIMEOUT_KIND.get(message.expired.timeout, TimeoutKind.UNSPECIFIED), **ended)
    newer = "the scheduler is newer than this client: upgrade it"
    return Failed(FailureKind.UNSPECIFIED, Reason.OTHER, newer, **ended)


def output_stream(number: int) -> OutputStream:
    """Returns the output that a number of the contract names."""
    return _OUTPUT_STREAM.get(number, OutputStream.UNSPECIFIED)


def refusal(code: int, message: str, detail: common_pb2.ErrorDetail | None) -> RefusedError:
    """Returns the exception for a refusal.

    Args:
        code: The canonical code's number.
        message: The status's message, for a refusal without a detail.
        detail: The contract's detail, if the refusal carries one.
    """
    known = _CODES.get(code, RefusalCode.UNKNOWN)
    if detail is None:
        return refused(known, rule=message)
    rule = detail.rule or message
    if detail.forgotten:
        return ForgottenError(known, field=detail.field, value=detail.value, rule=rule)
    retry_after_s = take_seconds(detail, "retry_delay")
    return refused(known, field=detail.field, value=detail.value, rule=rule, retry_after_s=retry_after_s)


def refusal_of_status(status: Any) -> RefusedError | None:
    """Returns the exception for a google.rpc.Status; None if it is OK."""
    if status.code == 0:
        return None
    detail = common_pb2.ErrorDetail()
    unpacked = any(packed.Unpack(detail) for packed in status.details)
    return refusal(status.code, status.message, detail if unpacked else None)


def _timeline(message: outcome_pb2.Timeline) -> Timeline:
    # By attributes, which is faster than `take_seconds`: this comes once for every action.
    has, waited = message.HasField, message.waited_s
    return Timeline(
        submitted_at=in_seconds(message.submitted) if has("submitted") else None,
        first_dispatched_at=in_seconds(message.first_dispatched) if has("first_dispatched") else None,
        dispatched_at=in_seconds(message.dispatched) if has("dispatched") else None,
        started_at=in_seconds(message.started) if has("started") else None,
        ended_at=in_seconds(message.ended) if has("ended") else None,
        queue_s=message.queue_s,
        execution_s=message.execution_s,
        overhead_s=message.overhead_s,
        start_wait_s=message.start_wait_s,
        waited_s=dict(waited) if waited else {},
    )


def _usage(message: outcome_pb2.Usage) -> Usage:
    cost = decode_cost(message.cost) if message.HasField("cost") else NO_COST
    return Usage(cpu_s=message.cpu_s, peak_memory_bytes=message.peak_memory_bytes or None, cost=cost)


def _failed(message: outcome_pb2.Failed, blobs: BlobReader, ended: dict[str, Any]) -> Failed[Any]:
    reason, text = _reason(message.reason, message.message)
    return Failed(
        _FAILURE_KIND.get(message.kind, FailureKind.UNSPECIFIED),
        reason,
        text,
        _result(message.partial, blobs),
        _TIMEOUT_KIND.get(message.timeout, TimeoutKind.UNSPECIFIED),
        message.retry_after_s or None,
        **ended,
    )


def _reason(word: str, message: str) -> tuple[Reason, str]:
    """A known word as such; any other one as OTHER, kept at the beginning of the message."""
    try:
        return Reason(word), message
    except ValueError:
        return Reason.OTHER, ": ".join(filter(None, (word, message)))


def _result(message: outcome_pb2.Succeeded, blobs: BlobReader) -> Result | None:
    which = message.WhichOneof("result")
    decode = _DECODERS.get(which or "")
    return None if which is None or decode is None else decode(getattr(message, which), blobs)
