"""Rules of single fields, which rules of messages are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from callsheet.v1 import common_pb2
from callsheet.v1.names import MAX_INLINE_BYTES
from callsheet.v1.rules import fields
from google.protobuf.duration_pb2 import Duration

from tests.support.refusals import refusal

DIGEST = "0123456789abcdef" * 4
REFERENCE = common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=DIGEST, size=5))


def referring(digest: str, size: int = 0) -> common_pb2.Blob:
    return common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=digest, size=size))


TAKEN: list[tuple[Callable[[], object], object]] = [
    (lambda: fields.blob("f", common_pb2.Blob(inline=b"x" * MAX_INLINE_BYTES)), []),
    (lambda: fields.blob("f", REFERENCE), [REFERENCE.reference]),
    *((partial(fields.identifier, "f", each), each) for each in ("a", "a b", "ä", "x" * 256, "j/../k", "日本")),
    (lambda: fields.known("f", 0, {0, 1}), 0),
    (lambda: fields.known("f", 1, {0, 1}, required=True), 1),
    (lambda: fields.within("f", 0.0, 0.0, 1.0), 0.0),
    (lambda: fields.within("f", 1.0, 0.0, 1.0), 1.0),
    (lambda: fields.at_least("f", 0.0, 0.0), 0.0),
    (lambda: fields.seconds("f", Duration()), 0.0),
    (lambda: fields.seconds("f", Duration(seconds=1, nanos=500_000_000)), 1.5),
    (lambda: fields.seconds("f", Duration(seconds=2_592_000)), 2_592_000.0),
]
NOT_TAKEN: list[tuple[Callable[[], object], str, str]] = [
    (lambda: fields.blob("f", common_pb2.Blob(inline=b"x" * (MAX_INLINE_BYTES + 1))), "f.inline", "put it first"),
    *(
        (partial(fields.blob, "f", referring(digest)), "f.reference.sha256", "64 lower-case hexadecimal")
        for digest in ("", "abc", DIGEST.upper(), DIGEST[:-1] + "g", DIGEST + "0")
    ),
    (lambda: fields.blob("f", referring(DIGEST, -1)), "f.reference.size", "at least 0"),
    *(
        (partial(fields.identifier, "f", value), "f", "1 to 256 printable")
        for value in ("", "x" * 257, "a\tb", "a\0", "a\u2028b", "\x1b[31m")
    ),
    (lambda: fields.known("f", 2, {0, 1}), "f", "is not a value"),
    (lambda: fields.known("f", -1, {0, 1}), "f", "is not a value"),
    (lambda: fields.known("f", 0, {0, 1}, required=True), "f", "must be specified"),
    *(
        (partial(fields.at_least, "f", value, 0.0), "f", "at least 0")
        for value in (math.nan, math.inf, -math.inf, -1e-3)
    ),
    *(
        (partial(fields.within, "f", value, 0.0, 1.0), "f", "between 0")
        for value in (math.nan, math.inf, -1e-3, 1.0001)
    ),
    *(
        (partial(fields.seconds, "f", Duration(seconds=seconds, nanos=nanos)), "f", "30 days")
        for seconds, nanos in ((-1, 0), (0, -1), (2_592_000, 1_000), (1 << 62, 0), (-(1 << 62), 0))
    ),
]


@pytest.mark.parametrize(("take", "value"), TAKEN)
def test_a_field_that_keeps_its_rule_is_taken(take: Callable[[], object], value: object) -> None:
    assert take() == value


@pytest.mark.parametrize(("take", "field", "rule"), NOT_TAKEN)
def test_a_field_that_breaks_its_rule_is_named(take: Callable[[], object], field: str, rule: str) -> None:
    refused = refusal(take)
    assert refused.field == field
    assert rule in refused.rule
