"""What a model wrote as JSON and no client could read: the gateway takes it for text, and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from callsheet.gateway.conversations.canonical import arguments_of
from callsheet.gateway.dialects import anthropic_content, chat_completions, messages, responses
from callsheet.gateway.model_json import MAX_DEPTH, MAX_PARTS, arguments_text, read_json, read_json_at
from callsheet.gateway.renderers import tool_calls
from callsheet.gateway.renderers.tool_calls import ToolFormat

NESTED = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", '{"a": 1e999}', NESTED, "[" * 5_000, "{} {}", "", "[" * 200 + "]" * 200]
)
def test_what_other_programs_cannot_read_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_json(text)


def test_a_reply_of_very_many_parts_is_text() -> None:
    many = "[" + "[]," * MAX_PARTS + "1]"
    with pytest.raises(ValueError, match="too many parts"):
        read_json(many)
    said = f'<tool_call>{{"name": "f", "arguments": {many}}}</tool_call>'
    assert tool_calls.parse_calls(said, ({},), ToolFormat.HERMES) == (said, ())
    calls = '{"name": "f"};' * 1000
    assert len(tool_calls.parse_calls(calls, ({},), ToolFormat.LLAMA_JSON)[1]) == 1000
    assert tool_calls.parse_calls(calls * 2, ({},), ToolFormat.LLAMA_JSON) == (calls * 2, ())


def test_all_else_is_json() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(read_json(deep)) == deep
    assert read_json(' {"a": [1.5, null, "\\ud83d"]} ') == {"a": [1.5, None, "\ud83d"]}
    assert read_json_at('{"a": 1}; {"b": 2}', 0) == ({"a": 1}, 8)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, {}),
        ("", {}),
        (" ", {}),
        ("null", {}),
        ({"a": None}, {"a": None}),
        ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_arguments_are_read_by_every_program(given: object, told: object) -> None:
    assert json.loads(arguments_text(given)) == told == arguments_of(given)
    for form, key in ((ToolFormat.HERMES, "arguments"), (ToolFormat.LLAMA_JSON, "parameters")):
        written = json.dumps({"name": "f", key: given}).replace("\\n", "\n")
        text = f"<tool_call>{written}</tool_call>" if form is ToolFormat.HERMES else written
        (call,) = tool_calls.parse_calls(text, ({},), form)[1]
        assert json.loads(call.arguments) == told


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    assert arguments_text("{a") == "{a"


@pytest.mark.parametrize("arguments", ["", None, {}, {"a": "b"}, '{"a": "b"}'])
def test_each_dialect_takes_arguments_as_agents_write_them(arguments: Any) -> None:
    function = {"name": "f", "arguments": arguments}
    assistant = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    used = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
    user = {"role": "user", "content": "x"}
    read = [
        chat_completions.read({"messages": [assistant]}).messages[0],
        messages.read({"messages": [{"role": "assistant", "content": [used]}, user]}).messages[0],
        responses.read({"input": [{"type": "function_call", "call_id": "c", **function}]}).messages[0],
    ]
    for message in read:
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == ({"a": "b"} if arguments else {})


def test_a_call_with_such_arguments_is_text() -> None:
    for body in (f'{{"name": "f", "parameters": {NESTED}}}', '{"name": "f", "parameters": {"a": NaN}}'):
        assert tool_calls._llama_json(body, ()) == (body, ())
    assert arguments_of(NESTED) == NESTED
    assert anthropic_content._input('{"a": NaN}') == anthropic_content._input('{"a": NaN}') != {"a": float("nan")}
