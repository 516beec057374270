"""The renderer of a tokenizer with a chat template, as directories of Hugging Face's models have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import BadRequestError, Message, Tool
from callsheet.gateway.conversations.renderer import ParsedReply
from callsheet.gateway.renderers.chat_template import ChatTemplate
from callsheet.gateway.renderers.reply_text import END_THINK, THINK, parse_text
from callsheet.gateway.renderers.text_markers import BREAK, REPLY_MARKERS, TextMarkers
from callsheet.gateway.renderers.tool_calls import detect
from tokenizers import Tokenizer

# The bytes of one token of a vocabulary, which may be a part of a character.
_SHOWN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in _SHOWN)
# Byte-level vocabularies write each byte as a letter: as itself, or from U+0100 on.
_BYTES: Final = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + place): byte for place, byte in enumerate(_HIDDEN)}
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"

_SENTINEL: Final = "q7Zk0vSentinelX3"
"""A text that stands for a reply; no message has it."""
# A tokenizer takes up to 260 bytes of memory for one.
MOST_CHARACTERS: Final = 4 << 20
_TAIL_TOKENS: Final = 8
"""Tokens at the end of a prompt in which an opened reasoning would be seen."""


def token_bytes(written: str, text: str) -> bytes:
    """Returns the bytes of a token.

    Args:
        written: As the vocabulary writes it: in letters that stand for bytes, as "<0xE2>", or with marked spaces.
        text: As its decoder writes it, if it stands alone.
    """
    if written.startswith("<0x") and len(written) == len("<0xE2>"):
        return bytes.fromhex(written[3:5])
    if "\N{REPLACEMENT CHARACTER}" in text and all(letter in _BYTES for letter in written):
        return bytes(_BYTES[letter] for letter in written)
    # A decoder leaves out the space at the begin of a text.
    return (f" {text}" if written.startswith(_SPACE) and not text.startswith(" ") else text).encode()


class TemplateRenderer:
    """Renders by a chat template, and appends by it where the template proves to be made of turns.

    What a message adds is rendered behind two made-up beginnings. If both give the same text from the end-of-turn token
    on, and that token is a special one, the tokens from there on do not depend on what is before them.

    Args:
        tokenizer: The tokenizer.
        template: The chat template.
        stop_token_ids: Tokens that end a reply; the template's own end-of-turn token is added to them.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, stop_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        # The template's markers tell how the model writes calls of tools, and whether it marks its reasoning.
        self._tool_format = detect(template.source)
        self._reasoning = END_THINK in template.source
        added = tokenizer.get_added_tokens_decoder()
        self._markers = TextMarkers(tokenizer)
        self._special = {token: entry.content for token, entry in added.items() if entry.special}
        self._takes_system = self._try_system()
        own = self._find_end_of_turn()
        self._stop_token_ids = frozenset(stop_token_ids) | ({own} if own is not None else set())
        self._ends = {
            token: entry.content for token, entry in added.items() if entry.special and token in self._stop_token_ids
        }

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The template's end-of-turn token and the model's other end tokens."""
        return self._stop_token_ids

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], template_arguments: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Returns the prompt of a whole conversation."""
        return self._encode(self._template.text(messages, tools, template_arguments, self._markers.broken))

    def bridge(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: Mapping[str, Any],
    ) -> tuple[int, ...] | None:
        """Returns the tokens to append, or None where the template's turns depend on what is before them."""
        if _SENTINEL in json.dumps([dict(message) for message in messages], default=str):
            return None
        broken = self._markers.broken
        found: set[str] = set()
        whole = ""
        for beginning in _beginnings(messages, tools, self._takes_system):
            try:
                whole = self._template.text([*beginning, *messages], tools, template_arguments, broken)
            except BadRequestError:
                return None
            found.add(self._from_end_of_turn(whole[whole.rfind(_SENTINEL) + len(_SENTINEL) :]))
        text = found.pop()
        if found or not text:
            return None
        suffix = self._encode(text)
        if self._encode(whole)[-len(suffix) :] != suffix:
            return None
        # The marker that a cut reply lacks comes with the new messages, as no sampled token.
        return suffix[1:] if token_ids[-1] in self._stop_token_ids else suffix

    def parse(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        stop: Sequence[str] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> ParsedReply:
        """Returns what a reply says."""
        return parse_text(
            self._text(token_ids),
            tools,
            stop,
            tool_format=self._tool_format,
            reasoning=self._reasoning,
            within_reasoning=self._is_within_reasoning(prompt_token_ids),
        )

    def marked_text(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        """Returns the text of a reply with its markers of calls and reasoning."""
        return (THINK if self._is_within_reasoning(prompt_token_ids) else "") + self._text(token_ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the tokens of a text, with those that the tokenizer puts around one."""
        return self._encode(text, around=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, special ones left out."""
        return self._decode(token_ids, markers=False)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token; special ones have none."""
        if token_id in self._special:
            return b""
        return token_bytes(self._tokenizer.id_to_token(token_id) or "", self._decode((token_id,)))

    def _text(self, token_ids: Sequence[int]) -> str:
        said = [token for token in token_ids if self._special.get(token, THINK) in REPLY_MARKERS]
        return self._decode(said)

    def _is_within_reasoning(self, prompt_token_ids: Sequence[int]) -> bool:
        tail = self._decode(prompt_token_ids[-_TAIL_TOKENS:])
        return tail.rstrip().endswith(THINK)

    # By batches, as only these let other threads run meanwhile.
    def _encode(self, text: str, *, around: bool = False) -> tuple[int, ...]:
        if len(text) > MOST_CHARACTERS:
            raise BadRequestError("messages", f"{len(text)} characters", f"at most {MOST_CHARACTERS}, tools included")
        if BREAK in text and not around:
            return self._markers.encode(_whole_characters(text))
        (found,) = self._tokenizer.encode_batch_fast([_whole_characters(text)], add_special_tokens=around)
        return tuple(found.ids)

    def _decode(self, token_ids: Sequence[int], *, markers: bool = True) -> str:
        (found,) = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=not markers)
        return str(found)

    def _find_end_of_turn(self) -> int | None:
        """Returns the special token that the template puts right behind a reply; None if it puts none there."""
        try:
            text = self._template.text([_user("a"), _assistant(_SENTINEL)], (), {}, generation_prompt=False)
        except BadRequestError:
            return None
        _, found, behind = text.rpartition(_SENTINEL)
        tokens = self._encode(behind) if found and behind else ()
        return tokens[0] if tokens and tokens[0] in self._special else None

    def _from_end_of_turn(self, text: str) -> str:
        """Returns a text from the first end token in it; empty if there is none."""
        places = [place for place in (text.find(end) for end in self._ends.values()) if place >= 0]
        return text[min(places) :] if places else ""

    def _try_system(self) -> bool:
        try:
            self._template.text([_system("s"), _user("a")], (), {})
        except BadRequestError:
            return False
        return True


def _beginnings(
    messages: Sequence[Message], tools: Sequence[Tool], system: bool
) -> tuple[Sequence[Message], Sequence[Message]]:
    """Returns two conversations that differ in all but their last reply, which the messages can follow."""
    last = _assistant(_SENTINEL)
    results: list[Message] = []
    for message in messages:
        if message.get("role") != "tool":
            break
        results.append(message)
    if results:
        name = tools[0].get("function", {}).get("name", "f") if tools else "f"
        last["tool_calls"] = [
            {
                "id": result.get("tool_call_id", ""),
                "type": "function",
                "function": {"name": result.get("name", name), "arguments": {"a": _SENTINEL}},
            }
            for result in results
        ]
    long = [_user("b"), {**_assistant("c"), "reasoning_content": "d"}, _user("e"), {**last, "reasoning_content": "f"}]
    return [_user("a"), last], [_system("s"), *long] if system else long


def _whole_characters(text: str) -> str:
    """Returns a text without halves of surrogate pairs, which JSON allows and UTF-8 does not."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
