"""What is counted of a body before it is parsed is what parsing it would make, wherever its pieces are cut."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from callsheet.http_server import bounded_json
from callsheet.http_server.bounded_json import check_json
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

TEXTS = st.text(st.sampled_from('"\\[]{},:a\n\u00e9\U0001f600'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def parts(value: Any) -> tuple[int, int, int]:
    """The fields, the commas and the levels of a value."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = [parts(each) for each in (value.values() if isinstance(value, dict) else value)]
    fields = 1 + (len(value) if isinstance(value, dict) else 0) + sum(each[0] for each in inner)
    commas = max(0, len(value) - 1) + sum(each[1] for each in inner)
    return fields, commas, 1 + max((each[2] for each in inner), default=0)


@given(VALUES, st.integers(1, 9), st.booleans(), st.sampled_from(("FIELDS", "VALUES", "DEPTH")), st.booleans())
def test_the_bounds_are_those_of_what_would_be_parsed(
    value: Any, step: int, ascii_only: bool, bound: str, is_beyond: bool
) -> None:
    counted = dict(zip(("FIELDS", "VALUES", "DEPTH"), parts(value), strict=True))
    content = json.dumps(value, ensure_ascii=ascii_only).encode()
    most = counted[bound] - (is_beyond and counted[bound] > 0)
    with patch.object(bounded_json, "_STEP", step), patch.object(bounded_json, f"MAX_{bound}", most):
        if most == counted[bound]:
            check_json(content)
        else:
            with pytest.raises(HTTPException, match="body"):
                check_json(content)


@given(st.binary(max_size=200) | st.text(st.sampled_from('"\\[]{},:')).map(str.encode), st.integers(1, 9))
def test_anything_is_counted(content: bytes, step: int) -> None:
    with patch.object(bounded_json, "_STEP", step):
        check_json(content)


@pytest.mark.parametrize("content", [b"[],", b"{},", b'"a":', b"1,", b'"a",', b"[", b'{"a":'])
def test_much_of_little_is_refused_before_it_is_parsed(content: bytes) -> None:
    with pytest.raises(HTTPException) as refused:
        check_json(b"[" + content * 600_000)
    assert refused.value.status_code == 413


@pytest.mark.parametrize("text", ["[],{}:" * 200_000, '\\"' * 200_000, "\\\\" * 200_000 + "[" * 200_000])
def test_marks_in_a_text_do_not_count(text: str) -> None:
    check_json(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
