"""Streams of server-sent events, made from a whole reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
"""How OpenAI's older protocols end a stream."""

PIECE_CHARACTERS: Final = 32
"""The most characters of one piece of a text."""


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """An event whose data is JSON; `name` is its type where the protocol has types of events."""
    line = f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
    return (f"event: {name}\n{line}" if name else line).encode()


def pieces(text: str) -> Iterator[str]:
    """Cuts a text into the pieces that a stream has; joined they are the text. An empty text has none."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]
