"""Anthropic's messages, as its own client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ReplyEnd
from callsheet.gateway.dialects import messages

from tests.support.dialect_answers import DialectAnswers, reply_of

USER: Any = {"role": "user", "content": "List the files."}
TOOL: Any = {
    "name": "bash",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
LONG = "The quick brown fox — ein schneller Fuchs — 狐狸跳过了懒狗 — jumps over the lazy dog.\n" * 2
CALLS = [("bash", json.dumps({"command": "ls " + "x" * 60})), ("bash", "{}")]
ASKED: Any = {"model": "policy", "max_tokens": 100, "messages": [USER], "tools": [TOOL]}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "max_tokens": 100, "messages": [USER]} | fields


def test_client_reads_a_whole_answer() -> None:
    served = DialectAnswers([reply_of("Two files.", reasoning="Let me see.", calls=CALLS)])
    answer = served.anthropic().messages.create(**ASKED)
    thought, said, first, second = answer.content
    assert (thought.type, said.type) == ("thinking", "text")
    assert thought.type == "thinking"
    assert (thought.thinking, bool(thought.signature)) == ("Let me see.", True)
    assert [call.input for call in (first, second) if call.type == "tool_use"] == [json.loads(c) for _, c in CALLS]
    assert answer.stop_reason == "tool_use"
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 5, 7)


@pytest.mark.parametrize(("end", "reason"), [(ReplyEnd.STOP, "end_turn"), (ReplyEnd.LENGTH, "max_tokens")])
def test_client_reads_why_a_reply_ended(end: ReplyEnd, reason: str) -> None:
    served = DialectAnswers([reply_of("Two", end=end)])
    assert served.anthropic().messages.create(**ASKED).stop_reason == reason


def test_stream_helper_puts_the_pieces_together() -> None:
    reply = reply_of(LONG, reasoning="Hm. " * 30, calls=CALLS)
    served = DialectAnswers([reply, reply])
    client = served.anthropic()
    with client.messages.stream(**ASKED) as stream:
        kinds = [happened.type for happened in stream]
        final = stream.get_final_message()
    assert min(kinds.count(kind) for kind in ("text", "thinking", "input_json")) > 3
    whole = client.messages.create(**ASKED)
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens, final.usage.input_tokens) == ("tool_use", 7, 6)


def test_empty_reply_streams() -> None:
    served = DialectAnswers([reply_of("")])
    with served.anthropic().messages.stream(**ASKED) as stream:
        assert stream.get_final_message().content == []


@pytest.mark.parametrize("arguments", ['{"a": 1}', "{", "[1]", "", '"x"'])
def test_arguments_survive_the_way_to_the_agent_and_back(arguments: str) -> None:
    served = DialectAnswers([reply_of("So.", reasoning="Hm.", calls=[("bash", arguments)]), reply_of("Done.")])
    client = served.anthropic()
    first = client.messages.create(**ASKED)
    results: Any = [
        {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "a.txt"}]},
        {"type": "text", "text": "Go on."},
    ]
    told: Any = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    client.messages.create(**ASKED | {"messages": told})
    _, said, result, more = served.requests[1].messages
    assert (said["content"], said["reasoning_content"]) == ("So.", "Hm.")
    assert said["tool_calls"][0]["function"]["arguments"] == (arguments or "{}")
    assert result == {"role": "tool", "content": "a.txt", "tool_call_id": "call_0"}
    assert more == {"role": "user", "content": "Go on."}


def test_read_takes_system_tools_and_sampling() -> None:
    request = messages.read(
        body(
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: v=1; hash=abc"},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
            tools=[TOOL],
            tool_choice={"type": "tool", "name": "bash", "disable_parallel_tool_use": True},
            temperature=0.5,
            top_k=5,
            stop_sequences=["END"],
            thinking={"type": "enabled", "budget_tokens": 1024},
            output_config={"effort": "low"},
            metadata={"user_id": "someone"},
            messages=[USER, {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "Now."}],
        )
    )
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "system"]
    assert request.messages[0]["content"] == "Be brief.\nBe kind."
    assert request.tools == [
        {
            "type": "function",
            "function": {"name": "bash", "description": TOOL["description"], "parameters": TOOL["input_schema"]},
        }
    ]
    assert request.tool_choice == "bash"
    asked = request.sampling
    assert (asked.max_tokens, asked.temperature, asked.top_k, asked.stop) == (100, 0.5, 5, ("END",))
    assert request.template_arguments == {"enable_thinking": True, "reasoning_effort": "low"}


@pytest.mark.parametrize(("kind", "read"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools(kind: str, read: str) -> None:
    assert messages.read(body(tools=[TOOL], tool_choice={"type": kind})).tool_choice == read


def test_tokens_are_counted_without_a_bound_of_the_reply() -> None:
    import anthropic

    assert messages.read({"model": "policy", "messages": [USER]}).sampling.max_tokens is None
    assert anthropic.types.MessageTokensCount.model_validate(messages.token_count(3)).input_tokens == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "The"}]}, "messages[1].role"),
        ({"messages": [{"role": "tool", "content": "The"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]}, USER]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        messages.read(body(**fields))
    assert raised.value.field == named


@pytest.mark.parametrize(
    ("status", "kind", "named"),
    [
        (400, "BadRequestError", "invalid_request_error"),
        (401, "AuthenticationError", "authentication_error"),
        (409, "ConflictError", "conflict_error"),
        (413, "RequestTooLargeError", "request_too_large"),
        (429, "RateLimitError", "rate_limit_error"),
        (500, "InternalServerError", "api_error"),
        (503, "ServiceUnavailableError", "overloaded_error"),
    ],
)
def test_errors_raise_the_clients_classes(status: int, kind: str, named: str) -> None:
    import anthropic

    served = DialectAnswers([status])
    with pytest.raises(getattr(anthropic, kind)) as raised:
        served.anthropic().messages.create(**ASKED)
    assert raised.value.type == named
