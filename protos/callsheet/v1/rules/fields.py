"""Rules for single fields. Each function raises RefusedError INVALID_ARGUMENT, which names field, value and rule."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, TypeAlias

from callsheet.v1 import common_pb2
from callsheet.v1.names import MAX_ID, MAX_INLINE_BYTES
from callsheet.v1.refusals import invalid
from google.protobuf import duration_pb2

References: TypeAlias = list[common_pb2.PayloadReference]
"""The stored payloads that a message refers to."""

MAX_SECONDS: Final = 30 * 24 * 3600.0
# Digits of its version, trace, span and flags.
_TRACEPARENT: Final = [2, 32, 16, 2]
_TRACEPARENT_CHARACTERS: Final = frozenset("0123456789abcdef-")
_DIGITS: Final = frozenset("0123456789abcdef")


def must(holds: object, field: str, value: object, rule: str) -> None:
    """Refuses a field unless its rule holds."""
    if not holds:
        raise invalid(field, value, rule)


def identifier(field: str, value: str) -> str:
    """Returns an id: 1 to 256 characters, none of them a control character."""
    if not 0 < len(value) <= MAX_ID or not value.isprintable():
        raise invalid(field, value, f"must have 1 to {MAX_ID} printable characters")
    return value


def short_text(field: str, value: str) -> str:
    """Returns a free text of at most 256 characters, none of them NUL, which not every database can store."""
    if len(value) > MAX_ID or "\0" in value:
        raise invalid(field, value, f"must have at most {MAX_ID} characters, none of them NUL")
    return value


def traceparent(field: str, value: str) -> str:
    """Returns a span as W3C Trace Context writes it; neither its trace nor itself is all zeros."""
    parts = value.split("-")
    shaped = [len(part) for part in parts] == _TRACEPARENT and set(value) <= _TRACEPARENT_CHARACTERS
    if not shaped or parts[0] == "ff" or not parts[1].strip("0") or not parts[2].strip("0"):
        rule = 'must be like "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", with a trace and a span above 0'
        raise invalid(field, value, rule)
    return value


def known(field: str, value: int, known_values: Collection[int], *, required: bool = False) -> int:
    """Returns a value of an enumeration; 0 (unspecified) is fine unless it is required."""
    if value not in known_values:
        raise invalid(field, value, "is not a value that this version knows")
    if required and value == 0:
        raise invalid(field, value, "must be specified")
    return value


def at_least(field: str, value: float, minimum: float) -> float:
    """Returns a finite number that is not below a minimum."""
    if not math.isfinite(value) or value < minimum:
        raise invalid(field, value, f"must be a number of at least {minimum}")
    return value


def within(field: str, value: float, minimum: float, maximum: float) -> float:
    """Returns a finite number in a closed interval."""
    if not minimum <= value <= maximum:
        raise invalid(field, value, f"must be between {minimum} and {maximum}")
    return value


def few(field: str, count: int, most: int, what: str) -> None:
    """Refuses more of something than there may be."""
    if count > most:
        raise invalid(field, f"{count} {what}", f"must have at most {most}")


def token_ids(field: str, ids: Collection[int], *, required: bool = True) -> None:
    """Refuses negative token ids, and none at all if they are required."""
    if not ids:
        if required:
            raise invalid(field, "[]", "must have at least one token")
    elif min(ids) < 0:
        raise invalid(field, min(ids), "must not be negative")


def to_seconds(duration: duration_pb2.Duration) -> float:
    """Returns a duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def seconds(field: str, duration: duration_pb2.Duration) -> float:
    """Returns a duration of 0 to 30 days, in seconds."""
    value = to_seconds(duration)
    if not 0 <= value <= MAX_SECONDS:
        raise invalid(field, f"{value} s", "must be between 0 and 30 days")
    return value


def longer_than_zero(field: str, duration: duration_pb2.Duration) -> float:
    """Returns a duration above 0 of at most 30 days, in seconds."""
    value = seconds(field, duration)
    if not value:
        raise invalid(field, "0 s", "must be above 0, or unset")
    return value


def blob(field: str, value: common_pb2.Blob) -> References:
    """Returns the reference that a blob makes, if any; its content is set and small enough."""
    content = value.WhichOneof("content")
    if content is None:
        raise invalid(field, "", "must have exactly one of inline and reference")
    if content == "inline":
        if (size := len(value.inline)) > MAX_INLINE_BYTES:
            rule = f"must have at most {MAX_INLINE_BYTES} bytes; put it first"
            raise invalid(f"{field}.inline", f"{size} bytes", rule)
        return []
    digest = value.reference.sha256
    if len(digest) != 64 or not set(digest) <= _DIGITS:
        raise invalid(f"{field}.reference.sha256", digest, "must be 64 lower-case hexadecimal digits")
    at_least(f"{field}.reference.size", value.reference.size, 0)
    return [value.reference]
