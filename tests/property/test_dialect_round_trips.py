"""A reply reaches an agent whole by each dialect, streamed or not, and comes back as the message that was sampled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from callsheet.gateway.chat import ChatReply, ChatRequest
from callsheet.gateway.dialects import chat_completions, completions, messages, responses
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dialect_answers import reply_of

TEXTS = st.text(max_size=100)
ARGUMENTS = st.one_of(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=40), max_size=3).map(json.dumps),
    st.text(min_size=1, max_size=40),
)
REPLIES = st.builds(
    reply_of,
    TEXTS,
    reasoning=TEXTS,
    calls=st.lists(st.tuples(st.sampled_from(["bash", "edit"]), ARGUMENTS), max_size=3),
)
HI: dict[str, Any] = {"role": "user", "content": "Hi."}


def told(stream: Iterable[bytes]) -> list[dict[str, Any]]:
    """The data of a stream's events."""
    lines = b"".join(stream).decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def back_by_chat(request: ChatRequest, reply: ChatReply) -> Mapping[str, Any]:
    message = chat_completions.answer(request, reply)["choices"][0]["message"]
    return chat_completions.read({"messages": [HI, message, HI]}).messages[1]


def back_by_messages(request: ChatRequest, reply: ChatReply) -> Mapping[str, Any]:
    message = {"role": "assistant", "content": messages.answer(request, reply)["content"]}
    return messages.read({"messages": [HI, message, HI]}).messages[1]


def back_by_responses(request: ChatRequest, reply: ChatReply) -> Mapping[str, Any]:
    read = responses.read({"input": [HI, *responses.answer(request, reply)["output"], HI]}).messages
    return read[1] if len(read) == 3 else {"role": "assistant", "content": ""}


def in_values(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as values, as agents write them anew."""
    calls = [dict(call["function"]) for call in message.get("tool_calls", [])]
    for call in calls:
        try:
            value = json.loads(call["arguments"])
        except ValueError:
            continue
        call["arguments"] = value if isinstance(value, dict) else call["arguments"]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("back", [back_by_chat, back_by_messages, back_by_responses])
@settings(max_examples=40)
@given(reply=REPLIES)
def test_what_agents_give_back_is_what_was_sampled(back: Any, reply: ChatReply) -> None:
    assert in_values(back(ChatRequest(messages=[HI]), reply)) == in_values(reply.message)


@settings(max_examples=40)
@given(reply=REPLIES)
def test_chunks_of_chat_completions_are_the_whole_message(reply: ChatReply) -> None:
    asked = ChatRequest(messages=[HI], stream=True)
    deltas = [data["choices"][0]["delta"] for data in told(chat_completions.events(asked, reply))]
    joined: dict[str, Any] = {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}
    if reasoning := "".join(delta.get("reasoning_content") or "" for delta in deltas):
        joined["reasoning_content"] = reasoning
    calls: list[dict[str, Any]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls", [])):
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert joined | ({"tool_calls": calls} if calls else {}) == reply.message


@settings(max_examples=40)
@given(reply=REPLIES)
def test_blocks_of_a_stream_of_messages_are_the_whole_content(reply: ChatReply) -> None:
    asked = ChatRequest(messages=[HI], stream=True)
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for data in told(messages.events(asked, reply)):
        if data["type"] == "content_block_start":
            blocks.append(data["content_block"])
        elif data["type"] == "content_block_delta":
            block, delta = blocks[data["index"]], data["delta"]
            name = delta["type"].removesuffix("_delta")
            if name == "input_json":
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
            else:
                block[name] += delta[name]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    assert blocks == messages.answer(asked, reply)["content"]


@settings(max_examples=40)
@given(reply=REPLIES)
def test_pieces_of_a_stream_of_responses_are_the_whole_texts(reply: ChatReply) -> None:
    asked = ChatRequest(messages=[HI], stream=True)
    events = told(responses.events(asked, reply))
    for data in events:
        kind, _, last = data["type"].rpartition(".")
        if last == "done" and kind.removeprefix("response.") not in ("output_item", "content_part"):
            place = (kind + ".delta", data["item_id"])
            pieces = [other["delta"] for other in events if (other["type"], other.get("item_id")) == place]
            whole = data.get("text", data.get("arguments"))
            assert "".join(pieces) == whole
    assert events[-1]["response"] == responses.answer(asked, reply)


@settings(max_examples=40)
@given(text=TEXTS)
def test_chunks_of_completions_are_the_whole_text(text: str) -> None:
    chunks = told(completions.events(ChatRequest(messages=(), prompt="Hi.", stream=True), reply_of(text)))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
