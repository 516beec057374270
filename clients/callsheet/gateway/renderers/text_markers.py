"""Keeps text in messages that reads like a control token from becoming one.

Templates put messages and control tokens into one text. So what reads like a control token in a message is broken in
two before, by letters that no message has. Behind the template, control tokens are those that are whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

# Tokens whose text says what a reply consists of; templates look for some of them in replies.
REPLY_MARKERS: Final = frozenset(("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"))
_MARKERS: Final = REPLY_MARKERS | {"<tool_response>", "</tool_response>"}
# Stands within a text that reads like a control token, and within a text that reads like this one.
BREAK: Final = "q7Zk0vBreakX3"


class TextMarkers:
    """The control tokens of a tokenizer, as texts.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._tokens = {entry.content: token for token, entry in added.items() if _is_marker(entry)}
        self._all = _any_of({BREAK, *self._tokens})
        self._in_replies = _any_of({BREAK, *self._tokens} - REPLY_MARKERS)

    def broken(self, value: Any, pattern: re.Pattern[str] | None = None) -> Any:
        """Returns messages, or the like, with the control tokens in their texts broken.

        The markers of a reply itself stay, as it was sampled with them; those in its calls do not.
        """
        pattern = pattern or self._all
        if isinstance(value, str):
            return pattern.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", value)
        if isinstance(value, Mapping):
            within = self._in_replies if value.get("role") == "assistant" else pattern
            return {
                self.broken(name): self.broken(inner, self._all if name == "tool_calls" else within)
                for name, inner in value.items()
            }
        return [self.broken(inner, pattern) for inner in value] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the tokens of a text; control tokens that are broken in it are text."""
        tokenizer, names, tokens = self._plain
        said = self._all.sub(lambda found: names.get(found[0], ""), text)
        (encoded,) = tokenizer.encode_batch_fast([said], add_special_tokens=False)
        return tuple(tokens.get(token, token) for token in encoded.ids)

    @cached_property
    def _plain(self) -> tuple[Tokenizer, Mapping[str, str], Mapping[int | None, int]]:
        """A tokenizer that knows control tokens by other names, those names, and what its tokens for them stand for."""
        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.add_special_tokens([AddedToken(text, normalized=False) for text in self._tokens])
        plain.encode_special_tokens = True
        # Nobody who writes a message can know them.
        names = {text: f"{secrets.token_hex(8)}." for text in self._tokens}
        added = self._tokenizer.get_added_tokens_decoder()
        for text, token in self._tokens.items():
            same = {"lstrip": added[token].lstrip, "rstrip": added[token].rstrip, "normalized": False}
            plain.add_tokens([AddedToken(names[text], **same)])
        return plain, names, {plain.token_to_id(names[text]): token for text, token in self._tokens.items()}


def _is_marker(entry: AddedToken) -> bool:
    return bool(entry.special) or entry.content in _MARKERS


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
