"""The renderer of the model that `callsheet up` makes: 256 bytes and three markers, with a template of its own.

Each message is `ROLE`, a line feed, its text and the end-of-turn marker. Turns are simply joined, so that what a
message adds never depends on what is before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import BadRequestError, Message, Tool
from callsheet.gateway.conversations.canonical import arguments_of, text_of
from callsheet.gateway.conversations.renderer import ParsedReply
from callsheet.gateway.renderers.reply_text import END_THINK, THINK, parse_text
from callsheet.gateway.renderers.tool_calls import ToolFormat
from callsheet.v1.names import BEGIN_TOKEN, END_OF_TURN_TOKEN

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_GENERATION_PROMPT: Final = tuple(b"assistant\n")


class ByteRenderer:
    """Renders for a vocabulary of bytes. Calls are written as Hermes does, reasoning between `<think>` markers."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The end-of-turn marker."""
        return frozenset((END_OF_TURN_TOKEN,))

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], template_arguments: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Returns the prompt of a whole conversation."""
        del template_arguments
        tokens = [BEGIN_TOKEN]
        if tools:
            tokens += _turn("tools", _tools_text(tools))
        return (*tokens, *_turns(messages), *_GENERATION_PROMPT)

    def bridge(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: Mapping[str, Any],
    ) -> tuple[int, ...]:
        """Returns the tokens to append; they are the same after any beginning."""
        del tools, template_arguments
        ending = () if token_ids[-1] == END_OF_TURN_TOKEN else (END_OF_TURN_TOKEN,)
        return (*ending, *_turns(messages), *_GENERATION_PROMPT)

    def parse(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        stop: Sequence[str] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> ParsedReply:
        """Returns what a reply says."""
        del prompt_token_ids
        return parse_text(self.decode(token_ids), tools, stop, tool_format=ToolFormat.HERMES, reasoning=True)

    def marked_text(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        """Returns the text of a reply, which has its markers as bytes."""
        del prompt_token_ids
        return self.decode(token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return bytes(token for token in token_ids if token < BEGIN_TOKEN).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the byte of a token; markers have none."""
        return bytes((token_id,)) if token_id < BEGIN_TOKEN else b""

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the bytes of a text behind the marker that starts a conversation; no text is a marker itself."""
        return (BEGIN_TOKEN, *text.encode("utf-8", errors="replace"))


def _turns(messages: Sequence[Message]) -> list[int]:
    tokens: list[int] = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            raise BadRequestError(f"messages[{place}].role", role, f"one of {', '.join(_ROLES)}")
        tokens += _turn(role, _body(message, place))
    return tokens


def _turn(role: str, text: str) -> list[int]:
    return [*f"{role}\n{text}".encode("utf-8", errors="replace"), END_OF_TURN_TOKEN]


def _body(message: Message, place: int) -> str:
    text = text_of(message.get("content"))
    if text is None:
        raise BadRequestError(f"messages[{place}].content", message["content"], "text: the model reads nothing else")
    reasoning = message.get("reasoning_content")
    thought = f"{THINK}{reasoning}{END_THINK}" if reasoning else ""
    calls = "".join(_call_text(call.get("function", {})) for call in message.get("tool_calls") or ())
    return thought + text + calls


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function.get("name"), "arguments": arguments_of(function.get("arguments"))}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def _tools_text(tools: Sequence[Tool]) -> str:
    declared = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False, sort_keys=True) for tool in tools)
    return f'{declared}\nCall one by <tool_call>{{"name": NAME, "arguments": {{...}}}}</tool_call>'
