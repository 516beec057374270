"""The blocks that the content of Anthropic's messages is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callsheet.gateway.chat import Message
from callsheet.gateway.dialects.fields import Fields, text_of_parts
from callsheet.gateway.dialects.tools import called_arguments
from callsheet.gateway.model_json import read_json

TEXT_PARTS: Final = {"text": "text"}
"""The blocks that are text, each with the field that has it."""

_UNPARSED: Final = "unparsed_arguments"
# Clients pass over thinking without a signature. The text beside it is what counts, so that nothing is signed.
_SIGNATURE: Final = "callsheet"


def read_message(message: Fields, role: str) -> Iterator[Message]:
    """The messages that one of Anthropic's is: each result of a tool is a message of its own.

    Raises:
        BadRequestError: A block is none that the model reads, or a field of it breaks its rule.
    """
    if role == "user" and isinstance(message.values.get("content"), list):
        yield from _user_messages(message)
    elif role == "assistant" and isinstance(message.values.get("content"), list):
        yield _assistant_message(message)
    else:
        yield {"role": role, "content": text_of_parts(message, "content", TEXT_PARTS)}


def _user_messages(message: Fields) -> Iterator[Message]:
    texts: list[str] = []
    for block in message.objects("content"):
        if block.choice("type", ("text", "tool_result")) == "text":
            texts.append(block.required_text("text"))
            continue
        yield from _user_message(texts)
        texts = []
        content = text_of_parts(block, "content", TEXT_PARTS)
        yield {"role": "tool", "content": content, "tool_call_id": block.name("tool_use_id")}
    yield from _user_message(texts)


def _user_message(texts: list[str]) -> Iterator[Message]:
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant_message(message: Fields) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.objects("content"):
        match block.choice("type", ("text", "thinking", "tool_use")):
            case "text":
                texts.append(block.required_text("text"))
            case "thinking":
                thoughts.append(block.required_text("thinking"))
            case _:
                calls.append(_tool_call(block))
    read: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        read["reasoning_content"] = "\n".join(thoughts)
    if calls:
        read["tool_calls"] = calls
    return read


def _tool_call(block: Fields) -> dict[str, Any]:
    function = {"name": block.name("name"), "arguments": _arguments(block)}
    return {"id": block.name("id"), "type": "function", "function": function}


def _arguments(block: Fields) -> str:
    told = block.values.get("input")
    if isinstance(told, Mapping) and set(told) == {_UNPARSED} and isinstance(raw := told[_UNPARSED], str):
        return raw
    return called_arguments(block, "input")


def _input(arguments: str) -> Mapping[str, Any]:
    """The arguments as an object, which Anthropic's are; what is none stands as a text in one."""
    try:
        told = read_json(arguments or "{}")
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {_UNPARSED: arguments}


def blocks(message: Message) -> list[dict[str, Any]]:
    """The blocks of a reply: what it thought, what it said, and the tools it calls."""
    made: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        made.append({"type": "thinking", "thinking": reasoning, "signature": _SIGNATURE})
    if content := message.get("content"):
        made.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        told = _input(function["arguments"])
        made.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": told})
    return made
