"""What a server of OpenAI's API says of the tokens of a completion. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_TOKENS: Final = 1 << 53


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


def _of(told: Any, name: str) -> Any:
    return told.get(name) if isinstance(told, Mapping) else None


def _count(told: Any, name: str) -> int:
    count = _of(told, name)
    return count if isinstance(count, int) and 0 < count < _MOST_TOKENS else 0
