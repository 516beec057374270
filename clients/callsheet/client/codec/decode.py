"""From the messages of the contract to the client's outcomes. Pure: fetches are collected, not made."""

from __future__ import annotations

from typing import Any

from callsheet.client.codec.actions import KINDS
from callsheet.client.codec.fields import BlobReader
from callsheet.client.errors import ForgottenError, RefusalCode, RefusedError, refused
from callsheet.client.words.outcomes import Cancelled, Expired, Failed, Outcome, Reason, Succeeded
from callsheet.client.words.results import Result
from callsheet.v1 import common_pb2, outcome_pb2
from callsheet.v1.outcome_values import FAILURE_KIND, TIMEOUT_KIND, FailureKind, Timeline, TimeoutKind, Usage
from callsheet.v1.values import seconds

_DECODERS = {kind.value: row.decode for kind, row in KINDS.items()}
_CODES = dict(enumerate(RefusalCode, start=1))


def decode_outcome(message: outcome_pb2.Outcome, blobs: BlobReader) -> Outcome[Any]:
    """Returns an outcome. If `blobs.missing` is not empty afterwards, fetch those and decode again."""
    ended: dict[str, Any] = {
        "job_id": message.key.job_id,
        "action_id": message.key.action_id,
        "timeline": Timeline.from_message(message.timeline),
        "usage": Usage.from_message(message.usage),
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
        return Expired(TIMEOUT_KIND.get(message.expired.timeout, TimeoutKind.UNSPECIFIED), **ended)
    newer = "the scheduler is newer than this client: upgrade it"
    return Failed(FailureKind.UNSPECIFIED, Reason.OTHER, newer, **ended)


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
    retry_after_s = seconds(detail.retry_delay) if detail.HasField("retry_delay") else None
    return refused(known, field=detail.field, value=detail.value, rule=rule, retry_after_s=retry_after_s)


def refusal_of_status(status: Any) -> RefusedError | None:
    """Returns the exception for a google.rpc.Status; None if it is OK."""
    if status.code == 0:
        return None
    detail = common_pb2.ErrorDetail()
    unpacked = any(packed.Unpack(detail) for packed in status.details)
    return refusal(status.code, status.message, detail if unpacked else None)


def _failed(message: outcome_pb2.Failed, blobs: BlobReader, ended: dict[str, Any]) -> Failed[Any]:
    reason, text = _reason(message.reason, message.message)
    return Failed(
        FAILURE_KIND.get(message.kind, FailureKind.UNSPECIFIED),
        reason,
        text,
        _result(message.partial, blobs),
        TIMEOUT_KIND.get(message.timeout, TimeoutKind.UNSPECIFIED),
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
    return None if which is None or decode is None else decode(getattr(message, which), blobs.read)
