"""Rules for single fields of requests. Each raises INVALID_ARGUMENT naming the field, the value and the rule."""

from __future__ import annotations

import math
from collections.abc import Collection

from callsheet.scheduler.core.words.model import invalid
from callsheet.scheduler.service.codec.refusals import to_seconds
from callsheet.v1 import common_pb2
from google.protobuf import duration_pb2

MAX_ID = 256
MAX_INLINE = 64 * 1024
MAX_SECONDS = 30 * 24 * 3600.0


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
