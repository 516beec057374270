"""Rules for single fields of requests, and refusals as gRPC statuses with one typed detail."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from callsheet.scheduler.core.words.refusals import RefusedError, invalid
from callsheet.v1 import action_pb2, common_pb2
from callsheet.v1.google_rpc import status_pb2
from callsheet.wire.encoded_fields import embedded, tag
from google.protobuf import any_pb2, duration_pb2

# Refusals as gRPC statuses with one typed detail.

E = TypeVar("E", bound=BaseException)
Context = grpc.aio.ServicerContext[Any, Any]
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


def to_status(refusal: RefusedError) -> status_pb2.Status:
    """A google.rpc.Status with one ErrorDetail."""
    detail = common_pb2.ErrorDetail(
        field=refusal.field, value=refusal.value, rule=refusal.rule, forgotten=refusal.forgotten
    )
    if refusal.retry_after is not None:
        detail.retry_delay.CopyFrom(to_duration(refusal.retry_after))
    packed = any_pb2.Any()
    packed.Pack(detail)
    return status_pb2.Status(code=int(refusal.code), message=str(refusal), details=[packed])


async def abort(context: Context, refusal: RefusedError) -> NoReturn:
    """Ends an rpc with the refusal; its details are in the standard trailer."""
    status = to_status(refusal)
    trailer = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(_STATUS_CODES[int(refusal.code)], str(refusal), trailing_metadata=trailer)
    raise AssertionError("abort always raises")


def first_of(group: BaseExceptionGroup[E]) -> E:
    """The first exception of a group and of the groups in it."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def to_duration(seconds: float) -> duration_pb2.Duration:
    """Seconds as a Duration."""
    duration = duration_pb2.Duration()
    fill_duration(duration, seconds)
    return duration


def fill_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Sets an empty Duration from seconds."""
    message.seconds = whole = int(seconds)
    nanos = int((seconds - whole) * 1e9)
    if nanos:
        message.nanos = nanos


def to_seconds(duration: duration_pb2.Duration) -> float:
    """A Duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


MAX_ID = 256
MAX_INLINE = 64 * 1024
MAX_SECONDS = 30 * 24 * 3600.0
# Digits of its version, trace, span and flags.
_TRACEPARENT = [2, 32, 16, 2]
_TRACEPARENT_TAG = tag(action_pb2.ActionSpec.TRACEPARENT_FIELD_NUMBER)
_TRACEPARENT_CHARACTERS = frozenset("0123456789abcdef-")


def identifier(field: str, value: str) -> str:
    """An id: 1 to 256 characters, none of them a control character."""
    if not 0 < len(value) <= MAX_ID or not value.isprintable():
        raise invalid(field, value, f"must have 1 to {MAX_ID} printable characters")
    return value


def short_text(field: str, value: str) -> str:
    """A free text of at most 256 characters, none of them NUL, which not every database can store."""
    if len(value) > MAX_ID or "\0" in value:
        raise invalid(field, value, f"must have at most {MAX_ID} characters, none of them NUL")
    return value


def traceparent(field: str, value: str) -> str:
    """A span as W3C Trace Context writes it; neither its trace nor itself is all zeros."""
    parts = value.split("-")
    shaped = [len(part) for part in parts] == _TRACEPARENT and set(value) <= _TRACEPARENT_CHARACTERS
    if not shaped or parts[0] == "ff" or not parts[1].strip("0") or not parts[2].strip("0"):
        rule = 'must be like "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", with a trace and a span above 0'
        raise invalid(field, value, rule)
    return value


def encode_traceparent(value: str) -> bytes:
    """The end of an encoded ActionSpec: it is kept, and no manager is told, so that no older one refuses the action."""
    return embedded(_TRACEPARENT_TAG, value.encode()) if value else b""


def known(field: str, value: int, known_values: Collection[int], *, required: bool = False) -> int:
    """A value of an enumeration; 0 (unspecified) is fine unless it is required."""
    if value not in known_values:
        raise invalid(field, value, "is not a value this scheduler knows")
    if required and value == 0:
        raise invalid(field, value, "must be specified")
    return value


def at_least(field: str, value: float, minimum: float) -> float:
    """A finite number that is not below a minimum."""
    if not math.isfinite(value) or value < minimum:
        raise invalid(field, value, f"must be a number of at least {minimum}")
    return value


def within(field: str, value: float, minimum: float, maximum: float) -> float:
    """A finite number in a closed interval."""
    if not math.isfinite(value) or not minimum <= value <= maximum:
        raise invalid(field, value, f"must be between {minimum} and {maximum}")
    return value


def few(field: str, count: int, most: int, what: str) -> None:
    """At most so many of something."""
    if count > most:
        raise invalid(field, f"{count} {what}", f"must have at most {most}")


def token_ids(field: str, ids: Collection[int], *, required: bool = True) -> None:
    """Token ids, at least one if they are required."""
    if required and not ids:
        raise invalid(field, "[]", "must have at least one token")
    if min(ids, default=0) < 0:
        raise invalid(field, min(ids), "must not be negative")


def seconds(field: str, duration: duration_pb2.Duration) -> float:
    """A duration of 0 to 30 days, in seconds."""
    value = to_seconds(duration)
    if not 0 <= value <= MAX_SECONDS:
        raise invalid(field, f"{value} s", "must be between 0 and 30 days")
    return value


def longer_than_zero(field: str, duration: duration_pb2.Duration) -> float:
    """A duration above 0 of at most 30 days, in seconds."""
    value = seconds(field, duration)
    if not value:
        raise invalid(field, "0 s", "must be above 0, or unset")
    return value


def blob(field: str, value: common_pb2.Blob) -> list[common_pb2.PayloadReference]:
    """A blob with its content set and small enough; returns the reference it makes, if any."""
    content = value.WhichOneof("content")
    if content is None:
        raise invalid(field, "", "must have exactly one of inline and reference")
    if content == "inline":
        if len(value.inline) > MAX_INLINE:
            raise invalid(
                f"{field}.inline", f"{len(value.inline)} bytes", f"must have at most {MAX_INLINE} bytes; put it first"
            )
        return []
    digest = value.reference.sha256
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise invalid(f"{field}.reference.sha256", digest, "must be 64 lower-case hexadecimal digits")
    at_least(f"{field}.reference.size", value.reference.size, 0)
    return [value.reference]
