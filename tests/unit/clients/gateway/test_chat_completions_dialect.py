"""Chat completions, as OpenAI's own client reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ReplyEnd, ReplyToken
from callsheet.gateway.dialects import chat_completions, completions, messages, models, responses
from callsheet.gateway.dialects.dialect import error_headers

from tests.support.dialect_answers import DialectAnswers, reply_of

USER: Any = {"role": "user", "content": "List the files."}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        "strict": True,
    },
}
LONG = "The quick brown fox — ein schneller Fuchs — 狐狸跳过了懒狗 — jumps over the lazy dog.\n" * 2
CALLS = [("bash", json.dumps({"command": "ls " + "x" * 60})), ("bash", "{}")]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [USER]} | fields


def test_client_reads_a_whole_answer() -> None:
    served = DialectAnswers([reply_of("Two files.", reasoning="Let me see.")])
    answer = served.openai().chat.completions.create(model="policy", messages=[USER])
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("Two files.", "stop", None)
    assert (choice.message.model_extra, choice.logprobs) == ({"reasoning_content": "Let me see."}, None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 5


def test_client_reads_calls_of_tools_in_parallel() -> None:
    served = DialectAnswers([reply_of(calls=CALLS)])
    answer = served.openai().chat.completions.create(model="policy", messages=[USER], tools=[TOOL])
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    assert [
        (c.id, c.function.name, c.function.arguments) for c in message.tool_calls or [] if c.type == "function"
    ] == [
        ("call_0", *CALLS[0]),
        ("call_1", *CALLS[1]),
    ]


def test_stream_helper_puts_the_pieces_together() -> None:
    served = DialectAnswers([reply_of(LONG, reasoning="Hm. " * 30, calls=CALLS)])
    with served.openai().chat.completions.stream(
        model="policy",
        messages=[USER],
        tools=[TOOL | {"function": TOOL["function"] | {"parameters": {}}}],
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [happened.type for happened in stream]
        final = stream.get_final_completion()
    assert (kinds.count("content.delta") > 3, kinds.count("tool_calls.function.arguments.done")) == (True, 2)
    message = final.choices[0].message
    assert (message.content, message.model_extra) == (LONG, {"reasoning_content": "Hm. " * 30})
    assert [call.function.arguments for call in message.tool_calls or []] == [CALLS[0][1], CALLS[1][1]]
    assert final.usage is not None
    assert final.usage.total_tokens == 18


def test_stream_has_usage_only_if_asked() -> None:
    served = DialectAnswers([reply_of("Yes."), reply_of("Yes.")])
    create = served.openai().chat.completions.create
    without = list(create(model="policy", messages=[USER], stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in without)
    asked: Any = {"include_usage": True}
    chunks = list(create(model="policy", messages=[USER], stream=True, stream_options=asked))
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []


def test_stream_without_text_still_ends() -> None:
    served = DialectAnswers([reply_of("", end=ReplyEnd.LENGTH)])
    chunks = list(served.openai().chat.completions.create(model="policy", messages=[USER], stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_log_probabilities_where_asked_only() -> None:
    tokens = [ReplyToken(5, "Ja", -0.25), ReplyToken(6, "\N{REPLACEMENT CHARACTER}", -1.5)]
    served = DialectAnswers([reply_of("Ja.", tokens=tokens) for _ in range(3)])
    create = served.openai().chat.completions.create
    whole = create(model="policy", messages=[USER], logprobs=True)
    assert whole.choices[0].logprobs is not None
    read = [(token.token, token.logprob, token.bytes) for token in whole.choices[0].logprobs.content or []]
    assert read == [("Ja", -0.25, [74, 97]), ("\N{REPLACEMENT CHARACTER}", -1.5, None)]
    streamed = list(create(model="policy", messages=[USER], logprobs=True, stream=True))
    found = [token.token for c in streamed if c.choices[0].logprobs for token in c.choices[0].logprobs.content or []]
    assert found == ["Ja", "\N{REPLACEMENT CHARACTER}"]
    assert create(model="policy", messages=[USER]).choices[0].logprobs is None


def test_answer_given_back_reads_as_the_message_that_was_sampled() -> None:
    reply = reply_of("Look.", reasoning="Hm.", calls=CALLS)
    served = DialectAnswers([reply, reply_of("Done.")])
    client = served.openai()
    first = client.chat.completions.create(model="policy", messages=[USER], tools=[TOOL])
    result = {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "a.txt"}]}
    told: Any = [USER, first.choices[0].message, result]
    client.chat.completions.create(model="policy", messages=told, tools=[TOOL])
    messages = served.requests[1].messages
    assert messages[1:] == [reply.message, {"role": "tool", "content": "a.txt", "tool_call_id": "call_0"}]


def test_read_takes_all_that_samples() -> None:
    request = chat_completions.read(
        body(
            max_tokens=9,
            max_completion_tokens=8,
            temperature=0.5,
            top_p=0.9,
            top_k=-1,
            seed=3,
            stop=["a", "b"],
            n=1,
            response_format={"type": "text"},
            chat_template_kwargs={"enable_thinking": False},
            reasoning_effort="low",
            user="someone",
            store=True,
        )
    )
    asked = request.sampling
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.seed) == (8, 0.5, 0.9, None, 3)
    assert asked.stop == ("a", "b")
    assert request.template_arguments == {"enable_thinking": False, "reasoning_effort": "low"}


def test_read_joins_parts_and_knows_developers() -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert chat_completions.read(body(messages=messages)).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One.\nTwo."},
    ]


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "bash"}}, "bash"),
    ],
)
def test_choices_of_tools(choice: Any, read: str) -> None:
    request = chat_completions.read(body(tools=[TOOL], tool_choice=choice))
    assert request.tool_choice == read
    assert "strict" not in request.tools[0]["function"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"stop": [1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        chat_completions.read(body(**fields))
    assert raised.value.field == named


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (429, "RateLimitError"),
        (503, "InternalServerError"),
    ],
)
def test_errors_raise_the_clients_classes(status: int, kind: str) -> None:
    import openai

    served = DialectAnswers([status])
    with pytest.raises(getattr(openai, kind)) as raised:
        served.openai().chat.completions.create(model="policy", messages=[USER])
    assert raised.value.type is not None


def test_refusal_reaches_the_caller_with_its_field() -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="as a call has one reply") as raised:
        DialectAnswers().openai().chat.completions.create(model="policy", messages=[USER], n=2)
    assert (raised.value.param, raised.value.type) == ("n", "invalid_request_error")


def test_conflict_is_not_tried_again() -> None:
    import openai

    served = DialectAnswers([409])
    with pytest.raises(openai.ConflictError):
        served.openai().with_options(max_retries=2).chat.completions.create(model="policy", messages=[USER])
    assert len(served.bodies) == 1
    assert error_headers(429, 0.2) == {"retry-after": "1"}


def test_models_are_listed_for_both_clients() -> None:
    listed = models.listing(["a", "b"], 0)
    assert [model["id"] for model in listed["data"]] == ["a", "b"]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("a", "b", False)
    assert models.listing([], 0)["first_id"] is None


def test_page_of_dialects_has_each_refused_field() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "gateway-dialects.md").read_text()
    refused = [field for dialect in (chat_completions, completions, messages, responses) for field in dialect.REFUSED]
    assert [field for field in refused if f"`{field}`" not in page] == []
