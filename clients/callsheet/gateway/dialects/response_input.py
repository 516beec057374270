"""The items of a responses call's input, as messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import Message
from callsheet.gateway.dialects.fields import Fields, text_of_parts
from callsheet.gateway.dialects.response_tools import CUSTOM_INPUT, LOCAL_SHELL, known_name
from callsheet.gateway.dialects.tools import called_arguments

_TEXT_PARTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ROLES: Final[Mapping[str, str]] = {
    "assistant": "assistant",
    "developer": "system",
    "system": "system",
    "user": "user",
}


def read_items(items: Sequence[Fields]) -> list[Message]:
    """The messages that items make.

    A reply of the model is several items: reasoning, then a text, then calls of tools. An item that cannot follow the
    one before it starts another message.

    Raises:
        BadRequestError: An item is none that the model reads, or a field of it breaks its rule.
    """
    reader = _Reader()
    for item in items:
        reader.read(item)
    return reader.messages


class _Reader:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._reply: dict[str, Any] | None = None  # the message that more items may add to

    def read(self, item: Fields) -> None:
        kind = item.choice("type", _READERS) if item.values.get("type") is not None else "message"
        _READERS[kind](self, item)

    def message(self, item: Fields) -> None:
        role = _ROLES[item.choice("role", _ROLES)]
        content = text_of_parts(item, "content", _TEXT_PARTS)
        if role != "assistant":
            self._add({"role": role, "content": content})
            return
        if self._reply is None or self._reply["content"] or "tool_calls" in self._reply:
            self._start_reply()
        self._open_reply()["content"] = content

    def reasoning(self, item: Fields) -> None:
        if text := _reasoning_text(item):
            self._start_reply()
            self._open_reply()["reasoning_content"] = text

    def function_call(self, item: Fields) -> None:
        name = known_name(item.name("name"), item.text("namespace") or "")
        self._call(item, name, called_arguments(item, "arguments"))

    def custom_tool_call(self, item: Fields) -> None:
        arguments = json.dumps({CUSTOM_INPUT: item.required_text("input")}, ensure_ascii=False)
        self._call(item, item.name("name"), arguments)

    def local_shell_call(self, item: Fields) -> None:
        action = item.required_object("action").values
        told = {name: value for name, value in action.items() if name != "type" and value not in (None, {})}
        self._call(item, LOCAL_SHELL, json.dumps(told, ensure_ascii=False))

    def _call(self, item: Fields, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": item.name("call_id"), "type": "function", "function": function}
        self._open_reply().setdefault("tool_calls", []).append(call)

    def output(self, item: Fields) -> None:
        call_id = item.name("call_id" if item.values.get("call_id") is not None else "id")
        self._add({"role": "tool", "content": text_of_parts(item, "output", _TEXT_PARTS), "tool_call_id": call_id})

    def _add(self, message: Message) -> None:
        self._reply = None
        self.messages.append(message)

    def _start_reply(self) -> None:
        self._reply = None

    def _open_reply(self) -> dict[str, Any]:
        if self._reply is None:
            self._reply = {"role": "assistant", "content": ""}
            self.messages.append(self._reply)
        return self._reply


_READERS: Final[Mapping[str, Callable[[_Reader, Fields], None]]] = {
    "message": _Reader.message,
    "reasoning": _Reader.reasoning,
    "function_call": _Reader.function_call,
    "custom_tool_call": _Reader.custom_tool_call,
    "local_shell_call": _Reader.local_shell_call,
    "function_call_output": _Reader.output,
    "custom_tool_call_output": _Reader.output,
    "local_shell_call_output": _Reader.output,
}


def encrypted(reasoning: str) -> str:
    """Reasoning for agents that give it back as encrypted content only; it is encoded and no secret."""
    return base64.b64encode(reasoning.encode(errors="surrogatepass")).decode()


def _reasoning_text(item: Fields) -> str:
    """Reasoning in words, else what was encoded, else its summary."""
    if text := text_of_parts(item, "content", {"reasoning_text": "text", "text": "text"}):
        return text
    if told := item.text("encrypted_content"):
        try:
            return base64.b64decode(told, validate=True).decode(errors="surrogatepass")
        except ValueError:
            raise item.error("encrypted_content", "what this gateway gave") from None
    return text_of_parts(item, "summary", {"summary_text": "text"})
