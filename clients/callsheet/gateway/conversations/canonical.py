"""Reduces a message to the parts that count when a harness sends it again, and digests conversations by them.

Harnesses drop reasoning, write a call's arguments anew with other spaces and another order of keys, number calls
themselves and strip whitespace. None of these changes makes another message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from callsheet.gateway.chat import Message, Tool
from callsheet.gateway.model_json import read_json


def text_of(content: object) -> str | None:
    """Returns the text of a content, be it a text or a list of texts; None if it is more than that."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        if len(texts) == len(content):
            return "".join(texts)
    return None


def arguments_of(text: object) -> object:
    """Returns the arguments of a call as an object where they are JSON, else as they are; none are an empty object."""
    if not isinstance(text, str):
        return {} if text is None else text
    try:
        found = read_json(text) if text.strip() else None
        return {} if found is None else found
    except ValueError:
        return text.strip()


def canonical(message: Message) -> dict[str, Any]:
    """Returns what two messages have in common if one is the other, sent again."""
    text = text_of(message.get("content"))
    form: dict[str, Any] = {
        "role": message.get("role"),
        "content": message.get("content") if text is None else text.strip(),
    }
    calls = message.get("tool_calls") or ()
    if calls:
        form["calls"] = [
            [call.get("function", {}).get("name"), arguments_of(call.get("function", {}).get("arguments"))]
            for call in calls
        ]
    if message.get("name") and form["role"] not in ("assistant", "tool"):
        form["name"] = message["name"]
    return form


def first_digest(tools: Sequence[Tool], template_arguments: Mapping[str, Any]) -> str:
    """Returns the digest of a conversation without messages yet. Other tools make another conversation."""
    return _digest("", [list(tools), dict(template_arguments)])


def next_digest(digest: str, message: Message) -> str:
    """Returns the digest of a conversation with one more message."""
    return _digest(digest, canonical(message))


def digests(
    messages: Sequence[Message], tools: Sequence[Tool], template_arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the digest of each beginning of a conversation: of no message, of one, up to all of them."""
    chain = [first_digest(tools, template_arguments)]
    for message in messages:
        chain.append(next_digest(chain[-1], message))
    return tuple(chain)


def _digest(before: str, value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:32]
