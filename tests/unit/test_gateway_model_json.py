"""What a model wrote as JSON and no client could read: the gateway takes it for text, and answers."""

from __future__ import annotations

import json

import pytest
from callsheet.gateway.conversations.canonical import arguments_of
from callsheet.gateway.dialects import anthropic_content
from callsheet.gateway.model_json import MAX_DEPTH, read_json, read_json_at
from callsheet.gateway.renderers import tool_calls

NESTED = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", '{"a": 1e999}', NESTED, "[" * 5_000, "{} {}", "", "[" * 200 + "]" * 200]
)
def test_what_other_programs_cannot_read_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_json(text)


def test_all_else_is_json() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(read_json(deep)) == deep
    assert read_json(' {"a": [1.5, null, "\\ud83d"]} ') == {"a": [1.5, None, "\ud83d"]}
    assert read_json_at('{"a": 1}; {"b": 2}', 0) == ({"a": 1}, 8)


def test_a_call_with_such_arguments_is_text() -> None:
    for body in (f'{{"name": "f", "parameters": {NESTED}}}', '{"name": "f", "parameters": {"a": NaN}}'):
        assert tool_calls._llama_json(body, ()) == (body, ())
    assert arguments_of(NESTED) == NESTED
    assert anthropic_content._input('{"a": NaN}') == anthropic_content._input('{"a": NaN}') != {"a": float("nan")}
