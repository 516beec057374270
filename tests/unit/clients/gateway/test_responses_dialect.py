"""OpenAI's responses, as its own client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ReplyEnd, ReplyToken
from callsheet.gateway.dialects import responses

from tests.support.dialect_answers import DialectAnswers, reply_of

BASH: Any = {
    "type": "function",
    "name": "bash",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    "strict": False,
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
}
AGENTS: Any = {
    "type": "namespace",
    "name": "agents",
    "description": "Others.",
    "tools": [{"type": "function", "name": "wait", "parameters": {"type": "object", "properties": {}}}],
}
SHELL: Any = {"type": "local_shell"}
SEARCHES: Any = [{"type": "web_search", "external_web_access": True}, {"type": "tool_search", "execution": "client"}]
TOOLS: Any = [BASH, PATCH, AGENTS, SHELL, *SEARCHES]
LONG = "The quick brown fox — ein schneller Fuchs — 狐狸跳过了懒狗 — jumps over the lazy dog.\n" * 2
CALLS = [
    ("bash", json.dumps({"command": "ls " + "x" * 60})),
    ("apply_patch", json.dumps({"input": "*** Begin Patch\n" + "y" * 60})),
    ("agents__wait", "{}"),
    ("local_shell", json.dumps({"command": ["ls", "-l"], "timeout_ms": 500})),
]
ASKED: Any = {"model": "policy", "input": "List the files.", "tools": TOOLS, "store": False}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "input": "List the files."} | fields


def test_client_reads_a_whole_answer() -> None:
    served = DialectAnswers([reply_of("Two files.", reasoning="Let me see.", calls=CALLS)])
    answer = served.openai().responses.create(**ASKED)
    assert answer.output_text == "Two files."
    assert [item.type for item in answer.output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
        "local_shell_call",
    ]
    thought, _, bash, patch, wait, shell = (item.to_dict() for item in answer.output)
    words = [{"type": "reasoning_text", "text": "Let me see."}]
    assert (thought["content"], thought["encrypted_content"]) == (words, None)
    assert (bash["name"], bash["arguments"], bash["call_id"]) == (*CALLS[0], "call_0")
    assert (patch["name"], patch["input"]) == ("apply_patch", "*** Begin Patch\n" + "y" * 60)
    assert (wait["name"], wait["namespace"]) == ("wait", "agents")
    assert shell["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 500}
    usage = answer.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)
    assert (usage.input_tokens_details.cached_tokens, answer.status) == (5, "completed")


def test_stream_helper_puts_the_pieces_together() -> None:
    reply = reply_of(LONG, reasoning="Hm. " * 30, calls=CALLS)
    served = DialectAnswers([reply, reply])
    client = served.openai()
    with client.responses.stream(**ASKED) as stream:
        told = list(stream)
        final = stream.get_final_response()
    kinds: list[str] = [happened.type for happened in told]
    assert [happened.sequence_number for happened in told] == list(range(len(told)))
    assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "response.completed")
    parts = ("output_text", "reasoning_text", "function_call_arguments", "custom_tool_call_input")
    assert [part for part in parts if kinds.count(f"response.{part}.delta") <= 2] == []
    pieces = [happened.delta for happened in told if happened.type == "response.output_text.delta"]
    assert "".join(pieces) == final.output_text == LONG
    whole = client.responses.create(**ASKED)
    assert [item.to_dict()["id"] for item in final.output] == [item.to_dict()["id"] for item in whole.output]
    assert final.usage == whole.usage


def test_items_of_a_stream_are_whole_when_they_are_done() -> None:
    served = DialectAnswers([reply_of("So.", calls=CALLS)])
    told = list(served.openai().responses.create(**ASKED, stream=True))
    done = [happened.item.to_dict() for happened in told if happened.type == "response.output_item.done"]
    assert done == told[-1].response.to_dict()["output"]


def test_reply_that_was_cut_is_incomplete() -> None:
    served = DialectAnswers([reply_of("Two", end=ReplyEnd.LENGTH)] * 2)
    client = served.openai()
    answer = client.responses.create(**ASKED)
    assert answer.incomplete_details is not None
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert list(client.responses.create(**ASKED, stream=True))[-1].type == "response.incomplete"


@pytest.mark.parametrize("keeps_words", [True, False])
def test_output_given_back_reads_as_the_message_that_was_sampled(keeps_words: bool) -> None:
    reply = reply_of("Look.", reasoning="Hm — so.", calls=CALLS)
    served = DialectAnswers([reply, reply_of("Done.")])
    client = served.openai()
    asked = ASKED | {"include": ["reasoning.encrypted_content"]}
    items = [item.to_dict() for item in client.responses.create(**asked).output]
    if not keeps_words:
        items[0].pop("content")
    outputs: Any = [
        {"type": "function_call_output", "call_id": "call_0", "output": [{"type": "input_text", "text": "a.txt"}]},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
        {"type": "function_call_output", "call_id": "call_2", "output": ""},
        {"type": "local_shell_call_output", "id": "call_3", "output": "total 0"},
    ]
    first: Any = {"role": "user", "content": "List the files."}
    client.responses.create(**asked | {"input": [first, *items, *outputs]})
    messages = served.requests[1].messages
    assert (messages[0], messages[1]) == ({"role": "user", "content": "List the files."}, reply.message)
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:]] == [
        ("call_0", "a.txt"),
        ("call_1", "done"),
        ("call_2", ""),
        ("call_3", "total 0"),
    ]


def test_replies_in_a_row_stay_apart() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One."}]}
    called = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
    thought: dict[str, Any] = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    request = responses.read(body(input=[said, called, called, thought, called, said, said], instructions="Be brief."))
    read = [(message["role"], message["content"], len(message.get("tool_calls", []))) for message in request.messages]
    assert read == [
        ("system", "Be brief.", 0),
        ("assistant", "One.", 2),
        ("assistant", "", 1),
        ("assistant", "One.", 0),
        ("assistant", "One.", 0),
    ]
    assert request.messages[2]["reasoning_content"] == "Hm."


def test_tools_of_all_kinds_are_functions_of_the_model() -> None:
    request = responses.read(body(tools=TOOLS))
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["bash", "apply_patch", "agents__wait", "local_shell"]
    assert "strict" not in request.tools[0]["function"]
    described = request.tools[1]["function"]["parameters"]["properties"]["input"]["description"]
    assert described.endswith("lark grammar:\nstart: /x+/")


@pytest.mark.parametrize("arguments", ["{", "[]", '{"other": 1}'])
def test_call_that_does_not_fit_its_tool_stays_as_it_was_sampled(arguments: str) -> None:
    request = responses.read(body(tools=TOOLS))
    calls = [("apply_patch", arguments), ("local_shell", arguments)]
    output = responses.answer(request, reply_of(calls=calls))["output"]
    assert [(item["type"], item["arguments"]) for item in output] == [("function_call", arguments)] * 2


def test_log_probabilities_where_asked_only() -> None:
    tokens = [ReplyToken(5, "Ja", -0.25), ReplyToken(6, ".", -1.5)]
    served = DialectAnswers([reply_of("Ja.", tokens=tokens)] * 2)
    client = served.openai()
    included = client.responses.create(**ASKED, include=["message.output_text.logprobs"]).output[0].to_dict()
    content: Any = included["content"]
    assert [token["logprob"] for token in content[0]["logprobs"]] == [-0.25, -1.5]
    plain: Any = client.responses.create(**ASKED).output[0].to_dict()["content"]
    assert plain[0]["logprobs"] == []


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "bash"}, "bash"),
        ({"type": "function", "name": "wait", "namespace": "agents"}, "agents__wait"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "local_shell"}, "local_shell"),
    ],
)
def test_choices_of_tools(choice: Any, read: str) -> None:
    assert responses.read(body(tools=TOOLS, tool_choice=choice)).tool_choice == read


def test_read_takes_sampling_and_effort() -> None:
    request = responses.read(
        body(max_output_tokens=9, temperature=0.5, top_p=0.9, reasoning={"effort": "low", "summary": "auto"})
    )
    asked = request.sampling
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.log_probs) == (9, 0.5, 0.9, False)
    assert request.template_arguments == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "?"}]}, "input[0].encrypted_content"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [BASH, BASH]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "wait"}}, "tool_choice.name"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        responses.read(body(**fields))
    assert raised.value.field == named


def test_errors_raise_the_clients_classes() -> None:
    import openai

    client = DialectAnswers([409, 503]).openai()
    for error in (openai.ConflictError, openai.InternalServerError):
        with pytest.raises(error):
            client.responses.create(**ASKED)
    with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
        client.responses.create(**ASKED, previous_response_id="resp_1")
