"""A body is read as Python's own reader reads it: duplicates, NaN, halves of pairs and large numbers, too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from callsheet.gateway.server.app import _object
from callsheet.gateway.server.faults import NoReplyError
from hypothesis import example, given
from hypothesis import strategies as st

_NUMBERS = (
    "-0",
    "-0.0",
    "1e5",
    "1E400",
    "-1e-400",
    "0.1",
    "1.0",
    "01",
    "1.",
    "NaN",
    "-Infinity",
    "18446744073709551616",
)
_TEXTS = ('"\\ud800"', '"\\ud83d\\ude00"', '"\u00e9"', '"\\u0000"', '"\x00"', '"a\nb"', '"\\x"', "'a'", '"a')
_VALUES = st.recursive(
    st.sampled_from((*_NUMBERS, *_TEXTS, "true", "null", "nul", "", "9" * 30, "9" * 5000))
    | st.integers().map(str)
    | st.floats().map(json.dumps)
    | st.text().map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda found: f"[{', '.join(found)}]")
        | st.lists(inner, max_size=3).map(lambda found: "{" + ",".join(f'"a": {each}' for each in found) + "}")
    ),
    max_leaves=6,
)
_BODIES = st.binary(max_size=20) | _VALUES.map(lambda value: f'{{"a":1,"a":{value}}}'.encode())


def by_python(content: bytes) -> Any:
    """What was read of a body before, or how it was refused."""
    try:
        body = json.loads(content.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        return f"the body is no JSON: {error}"
    return body if isinstance(body, dict) else f"the body is {type(body).__name__}; it must be an object"


def read(content: bytes) -> Any:
    try:
        return _object(content)
    except NoReplyError as refusal:
        return str(refusal)


@given(_BODIES)
@example(b'\xef\xbb\xbf{"a": 1}')
@example('{"a": "\ud800"}'.encode("utf-8", "surrogatepass"))
@example('{"a": 1}'.encode("utf-16"))
@example(b'{"a": 1} x')
@example(b'{"a": 1}\x00')
@example(b'{"a": 1, "b": 2, "a": NaN}')
@example(b"[]")
@example(b"")
def test_a_body_is_what_it_was(content: bytes) -> None:
    # By the text: NaN is not equal to itself, and 1 is equal to 1.0.
    assert repr(read(content)) == repr(by_python(content))


@pytest.mark.parametrize("depth", [90, 100_000])
def test_depth_is_no_crash(depth: int) -> None:
    content = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    assert type(read(content)) is type(by_python(content))
