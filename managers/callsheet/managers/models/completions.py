"""Reads completions of servers of OpenAI's API: tokens, text, and the reason for a missing text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_MESSAGE_CHARACTERS: Final = 500
_MOST_TOKENS: Final = 1 << 53
# Reasons by which servers tell that a completion came to its own end; some tell none.
_ENDED: Final = frozenset({None, "", "stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_KEY_REFUSED: Final = frozenset({401, 402, 403})
# Words of refusals about money. Ordinary rate limits have "quota" and "billing", too; a refusal may quote a prompt.
_MONEY: Final = (
    *("insufficient_quota", "insufficient balance", "billing_hard_limit", "budget has been exceeded"),
    *("credit balance", "budget_exceeded"),
)
# Words of refusals of a prompt that is too long, among others in the same answer.
_TOO_LONG: Final = ("context length", "maximum allowed length", "max_model_len", "longer than")


def told_tokens(completion: Any) -> dict[str, int]:
    """Returns its tokens in the words of the contract's Cost; what is not told, or makes no sense, is left out."""
    usage = _of(completion, "usage")
    cached = _count(_of(usage, "prompt_tokens_details"), "cached_tokens")
    found = {
        "tokens_in": max(_count(usage, "prompt_tokens") - cached, 0),
        "tokens_cached": cached,
        "tokens_out": _count(usage, "completion_tokens"),
    }
    return {name: count for name, count in found.items() if count}


def text_of(completion: Any) -> tuple[str, str]:
    """Returns the text of a completion, and why it is not the whole text; empty if it is.

    Raises:
        LookupError: It is no chat completion.
        TypeError: The same.
    """
    choice = completion["choices"][0]
    text, refusal = (str(_of(choice["message"], name) or "") for name in ("content", "refusal"))
    unfinished = "" if _of(choice, "finish_reason") in _ENDED else f"finish_reason is {choice['finish_reason']}"
    return text, (f"refused: {refusal}" if refusal else unfinished)[:MAX_MESSAGE_CHARACTERS]


def message_of(content: Any) -> str:
    """Returns the message in an error's body, in any of the shapes that servers give it; at most a few lines."""
    if isinstance(content, dict):
        for name in ("error", "message", "detail"):
            if content.get(name):
                return message_of(content[name])
    text = content if isinstance(content, str) else json.dumps(content)
    # A server that cuts a text may leave half a character.
    return text[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()


def blames_account(status: int, content: Any) -> bool:
    """Returns whether a refusal is about the key or the money of the caller, so that no request would do better."""
    error = _of(content, "error")
    words = " ".join(str(each) for each in (message_of(content), _of(error, "type"), _of(error, "code"))).lower()
    return status in _KEY_REFUSED or (status in (400, 429) and any(each in words for each in _MONEY))


def blames_length(status: int, message: str) -> bool:
    """Returns whether a refusal is about a prompt that is too long."""
    return status == 413 or (status in (400, 422) and any(each in message.lower() for each in _TOO_LONG))


def _of(told: Any, name: str) -> Any:
    return told.get(name) if isinstance(told, Mapping) else None


def _count(told: Any, name: str) -> int:
    count = _of(told, name)
    return count if isinstance(count, int) and 0 < count < _MOST_TOKENS else 0
