"""Answers of a scripted engine. Pure.

A script is a JSON object, such as `{"replies": [{"match": "rain", "text": "It is wet."}, {"text": "Hello."}]}`, or one
such reply a line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_FIELDS: Final = frozenset(("key", "replies", "context_length"))
_REPLY_FIELDS: Final = frozenset(
    (
        "text",
        "token_ids",
        "random_tokens",
        "match",
        "key",
        "repeat",
        "log_probs",
        "versions",
        "cut",
        "delay_s",
        "token_s",
    )
)
CONTEXT_LENGTH: Final = 131_072


class ScriptError(ValueError):
    """A script that breaks a rule; it names the field, the value and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One reply. Exactly one of `text`, `token_ids` and `random_tokens` is given.

    Attributes:
        text: What it says; the tokenizer makes tokens of it.
        token_ids: Its tokens themselves.
        random_tokens: So many tokens, each drawn from the whole vocabulary by the seed of the request.
        match: Only for prompts in whose text this pattern is found; None is for any.
        key: Only for prompts with this key, see `EngineScript.key`; such a reply is never used up.
        repeat: Whether it may be given again and again.
        log_probs: Of its tokens, the end token included; made up where none are given.
        versions: The policy version of each stretch, as (version, begin, end); the engine's own where none are given.
        cut: Whether it lacks the token that ends a turn, as a reply that met its limit.
        delay_s: Seconds until its first token.
        token_s: Seconds from one token to the next.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    random_tokens: int | None = None
    match: re.Pattern[str] | None = None
    key: str | None = None
    repeat: bool = False
    log_probs: tuple[float, ...] = ()
    versions: tuple[tuple[int, int, int], ...] = ()
    cut: bool = False
    delay_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineScript:
    """Answers of an engine.

    Attributes:
        replies: In their order.
        key: A pattern with one group. What the group has in its last match in the prompt is the prompt's key.
        context_length: The most tokens of a prompt and its reply.
    """

    replies: tuple[ScriptedReply, ...]
    key: re.Pattern[str] | None = None
    context_length: int = CONTEXT_LENGTH


@dataclass(slots=True)
class ScriptPlayer:
    """Goes through a script: the first reply that fits a prompt and is not used up."""

    script: EngineScript
    _left: list[ScriptedReply] = field(init=False)
    _by_key: dict[str, ScriptedReply] = field(init=False)

    def __post_init__(self) -> None:
        self._left = [reply for reply in self.script.replies if reply.key is None]
        self._by_key = {reply.key: reply for reply in self.script.replies if reply.key is not None}

    def reply_to(self, prompt: str) -> ScriptedReply | None:
        """Returns the reply to a prompt's text, and uses it up; None if the script has none for it."""
        if self.script.key is not None and self._by_key:
            keys = self.script.key.findall(prompt)
            if keys and keys[-1] in self._by_key:
                return self._by_key[keys[-1]]
        for place, reply in enumerate(self._left):
            if reply.match is None or reply.match.search(prompt):
                if not reply.repeat:
                    del self._left[place]
                return reply
        return None


def read_script(text: str) -> EngineScript:
    """Returns a script.

    Args:
        text: Of its file: a JSON object, or one JSON object a line, each a reply.

    Raises:
        ScriptError: It breaks a rule.
    """
    value = _parse(text)
    _known(value, _FIELDS, "")
    replies = value.get("replies", [])
    if not isinstance(replies, list) or not replies:
        raise ScriptError("replies is empty; it must be a list of at least one reply")
    key = None if value.get("key") is None else _pattern(value["key"], "key")
    if key is not None and key.groups != 1:
        raise ScriptError(f"key is {value['key']!r}; it must be a pattern with one group")
    return EngineScript(
        replies=tuple(_reply(each, f"replies[{place}]") for place, each in enumerate(replies)),
        key=key,
        context_length=_typed(value, "context_length", int, "a number", "") or CONTEXT_LENGTH,
    )


def _parse(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            return {"replies": [json.loads(line) for line in lines]}
        except ValueError:
            raise ScriptError(f"the script is no JSON, nor lines of it: {error}") from error
    if isinstance(value, list):
        return {"replies": value}
    if not isinstance(value, dict):
        raise ScriptError("the script is no JSON object")
    return value if "replies" in value else {"replies": [value]}


def _reply(value: Any, place: str) -> ScriptedReply:
    if not isinstance(value, dict):
        raise ScriptError(f"{place} is {value!r:.80}; it must be an object")
    _known(value, _REPLY_FIELDS, f"{place}.")
    given = [name for name in ("text", "token_ids", "random_tokens") if value.get(name) is not None]
    if len(given) != 1:
        raise ScriptError(f"{place} has {given or 'none'}; it must have one of text, token_ids, random_tokens")
    reply = ScriptedReply(
        text=_typed(value, "text", str, "a text", place),
        token_ids=_numbers(value, "token_ids", int, place) if "token_ids" in value else None,
        random_tokens=_typed(value, "random_tokens", int, "a number", place),
        match=None if value.get("match") is None else _pattern(value["match"], f"{place}.match"),
        key=_typed(value, "key", str, "a text", place),
        repeat=bool(_typed(value, "repeat", bool, "true or false", place)),
        log_probs=_numbers(value, "log_probs", (int, float), place),
        versions=tuple(_span(span, place) for span in value.get("versions", [])),
        cut=bool(_typed(value, "cut", bool, "true or false", place)),
        delay_s=_seconds(value, "delay_s", place),
        token_s=_seconds(value, "token_s", place),
    )
    if reply.random_tokens is not None and reply.random_tokens < 1:
        raise ScriptError(f"{place}.random_tokens is {reply.random_tokens}; it must be at least 1")
    if reply.token_ids == ():
        raise ScriptError(f"{place}.token_ids is empty; it must have at least one token")
    return reply


def _known(value: Mapping[str, Any], fields: frozenset[str], place: str) -> None:
    for name in value:
        if name not in fields:
            raise ScriptError(f"{place}{name} is unknown; it must be one of {', '.join(sorted(fields))}")


def _typed(value: Mapping[str, Any], name: str, kind: type, rule: str, place: str) -> Any:
    found = value.get(name)
    if found is not None and not (isinstance(found, kind) and (kind is bool or not isinstance(found, bool))):
        raise ScriptError(f"{place}{'.' if place else ''}{name} is {found!r:.80}; it must be {rule}")
    return found


def _numbers(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], place: str) -> tuple[Any, ...]:
    found = value.get(name, [])
    if not isinstance(found, Sequence) or not all(isinstance(each, kind) for each in found):
        raise ScriptError(f"{place}.{name} is {found!r:.80}; it must be a list of numbers")
    return tuple(found)


def _span(value: Any, place: str) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(each, int) for each in value):
        raise ScriptError(f"{place}.versions has {value!r:.80}; each must be [version, begin, end]")
    version, begin, end = value
    return version, begin, end


def _seconds(value: Mapping[str, Any], name: str, place: str) -> float:
    found = value.get(name, 0)
    if not isinstance(found, int | float) or not (math.isfinite(found) and found >= 0):
        raise ScriptError(f"{place}.{name} is {found!r:.80}; it must be a number of seconds, at least 0")
    return float(found)


def _pattern(text: Any, place: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ScriptError(f"{place} is {text!r:.80}; it must be a regular expression: {error}") from error
