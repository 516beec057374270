"""Whatever stands in a body, a dialect reads it or refuses it by the name of a field, and never breaks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ChatRequest
from callsheet.gateway.dialects.dialect import DIALECTS, Dialect
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dialect_answers import reply_of

CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "bash"}},
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": True},
        "temperature": 1,
        "max_tokens": 5,
        "stop": ["x"],
        "logprobs": True,
    },
    "/messages": {
        "model": "policy",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Hi."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "tool_use", "id": "c", "name": "bash", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a.txt"}]},
        ],
        "tools": [{"name": "bash", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "bash"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
    },
    "/responses": {
        "model": "policy",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "SG0u"},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
            {"type": "local_shell_call", "call_id": "e", "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
        ],
        "tools": [
            {"type": "function", "name": "bash", "parameters": SCHEMA},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "wait"}]},
            {"type": "local_shell"},
        ],
        "tool_choice": {"type": "function", "name": "bash"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
    },
    "/completions": {"model": "policy", "prompt": [1, 2], "logprobs": 1, "stream_options": {}, "max_tokens": 5},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a value, with each key in it."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in ((value, key), *places(inner))]
    if isinstance(value, list):
        return [pair for key, inner in enumerate(value) for pair in ((value, key), *places(inner))]
    return []


def read_or_refused(dialect: Dialect, body: dict[str, Any]) -> ChatRequest | BadRequestError:
    try:
        return dialect.read(body)
    except BadRequestError as error:
        return error


def test_each_body_is_read_as_it_is() -> None:
    assert set(BODIES) == set(DIALECTS)
    for path, body in BODIES.items():
        assert isinstance(DIALECTS[path].read(body), ChatRequest)


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=50)
@given(data=st.data())
def test_a_body_with_something_else_in_it_is_read_or_refused_by_name(path: str, data: st.DataObject) -> None:
    body = copy.deepcopy(BODIES[path])
    container, key = data.draw(st.sampled_from(places(body)), label="where")
    container[key] = data.draw(JSON, label="what")
    dialect = DIALECTS[path]
    request = read_or_refused(dialect, body)
    if isinstance(request, BadRequestError):
        assert request.field
        return
    reply = reply_of("Hi.", reasoning="Hm.", calls=[("bash", "{}"), ("patch", '{"input": "x"}')])
    assert dialect.answer(request, reply)
    assert list(dialect.events(request, reply))
