"""Calls of tools in the text of a reply, in the formats that models are trained to write."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from callsheet.gateway.chat import Tool
from callsheet.gateway.conversations.renderer import WrittenCall
from callsheet.gateway.model_json import arguments_text, has_too_many_parts, read_json, read_json_at

# Calls as Qwen3-Coder and Qwen 3.5 write them: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.
#
# A value is any text, these markers too. So it ends where its own marker pairs off with the one that opened it. Where
# the markers do not pair off, it ends where a line begins with another parameter. Each look is a single pass.
_FUNCTION: Final = "<function="
_END_FUNCTION: Final = "</function>"
_PARAMETER: Final = "<parameter="
_END_PARAMETER: Final = "</parameter>"
_PARAMETER_MARKER: Final = re.compile(f"{_PARAMETER}|{_END_PARAMETER}")
_LONGEST_NAME: Final = 256

ParsedCalls = tuple[str, tuple[WrittenCall, ...]]
"""The text beside the calls, and the calls."""

_CALL: Final = "<tool_call>"
_END_CALL: Final = "</tool_call>"
_MARKER: Final = re.compile(f"{_CALL}|{_END_CALL}")
_END: Final = re.compile(rf"</function>\s*{_END_CALL}")
_SPACE: Final = re.compile(r"\s*")
# What is looked at of one reply: ids of calls have three digits, and each look may read on to the reply's end.
_MOST_CALLS: Final = 1000
_PYTHON_TAG: Final = "<|python_tag|>"


def read_function(body: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Returns the name and the parameters of a call, or None where a text is no whole call."""
    name, start = _named(body, _FUNCTION, 0)
    if not name or not body.endswith(_END_FUNCTION, start):
        return None
    inner = body[start : -len(_END_FUNCTION)]
    return name, _paired(inner) or _by_lines(inner)


def _named(text: str, marker: str, place: int) -> tuple[str, int]:
    """Returns the name in the marker at a place, and the place behind it; an empty name where there is none."""
    begin = place + len(marker)
    end = text.find(">", begin, begin + _LONGEST_NAME) if text.startswith(marker, place) else -1
    name = text[begin:end].rstrip() if end >= 0 else ""
    return (name if len(name.split()) == 1 and "<" not in name else ""), end + 1


def _paired(text: str) -> list[tuple[str, str]]:
    """Returns the parameters whose markers pair off, with nothing but space between them; none where they do not."""
    found: list[tuple[str, str]] = []
    depth = begin = end = 0
    name = ""
    for marker in _PARAMETER_MARKER.finditer(text):
        opens = marker[0] == _PARAMETER
        if opens and depth == 0:
            name, begin = _named(text, _PARAMETER, marker.start())
            if not name or text[end : marker.start()].strip():
                return []
        depth += 1 if opens else -1
        if depth < 0:
            return []
        if depth == 0:
            found.append((name, text[begin : marker.start()]))
            end = marker.end()
    return found if depth == 0 and not text[end:].strip() else []


def _by_lines(text: str) -> list[tuple[str, str]]:
    """Returns the parameters that begin on lines of their own; each ends at the last marker before the next one."""
    parts = f"\n{text.lstrip()}".split(f"\n{_PARAMETER}")[1:]
    named = [(name.strip(), value) for name, closed, value in (part.partition(">") for part in parts) if closed]
    return [(name, value.rpartition(_END_PARAMETER)[0] or value) for name, value in named]


class ToolFormat(Enum):
    """How a model writes a call."""

    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and Qwen 3."""
    QWEN_XML = "qwen-xml"
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5."""
    LLAMA_JSON = "llama-json"
    """The reply is `{"name": ..., "parameters": {...}}`, several with `;` between them: Llama 3."""
    NONE = "none"
    """No call is looked for."""


def detect(template: str) -> ToolFormat:
    """Returns the format that a chat template teaches the model, by the markers in it."""
    if "<function=" in template and "<parameter=" in template:
        return ToolFormat.QWEN_XML
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    if '"parameters": ' in template and ("<|start_header_id|>" in template or _PYTHON_TAG in template):
        return ToolFormat.LLAMA_JSON
    return ToolFormat.NONE


def parse_calls(text: str, tools: Sequence[Tool], form: ToolFormat) -> ParsedCalls:
    """Returns the calls of a reply and its other text. What is not a whole call stays text."""
    parser = _PARSERS.get(form)
    if parser is None or not tools or has_too_many_parts(text):
        return text, ()
    return parser(text, tools)


def _blocks(text: str, read: Callable[[int], tuple[WrittenCall, int] | None]) -> ParsedCalls:
    """Returns the calls behind `<tool_call>` markers; what cannot be read stays where it is.

    Args:
        text: The reply.
        read: Returns the call at a place, and the place behind its last marker; None where there is no whole call.
    """
    calls: list[WrittenCall] = []
    rest: list[str] = []
    end = place = 0
    for _ in range(_MOST_CALLS):
        place = text.find(_CALL, place)
        if place < 0:
            break
        found = read(place + len(_CALL))
        if found is None:
            place += len(_CALL)
            continue
        calls.append(found[0])
        rest.append(text[end:place])
        end = place = found[1]
    if not calls:
        return text, ()
    rest.append(text[end:])
    return "".join(part.strip() and part for part in rest).rstrip(), tuple(calls)


def _behind_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _hermes(text: str, _: Sequence[Tool]) -> ParsedCalls:
    def read(place: int) -> tuple[WrittenCall, int] | None:
        # The value tells its own end: a marker in a text of it is text.
        try:
            value, end = read_json_at(text, _behind_space(text, place))
        except ValueError:
            return None
        call, end = _from_json(value, "arguments"), _behind_space(text, end)
        return (call, end + len(_END_CALL)) if call is not None and text.startswith(_END_CALL, end) else None

    return _blocks(text, read)


def _qwen_xml(text: str, tools: Sequence[Tool]) -> ParsedCalls:
    pairs = _pairs(text)
    ends = [found.end() - len(_END_CALL) for found in _END.finditer(text)]

    def read(place: int) -> tuple[WrittenCall, int] | None:
        # The marker that pairs off, else the first one that follows a function's end.
        following = bisect_left(ends, place)
        for end in (pairs.get(place), ends[following] if following < len(ends) else None):
            found = None if end is None else read_function(text[place:end].strip())
            if end is not None and found is not None:
                declared = _parameters(tools, found[0])
                values = {key: _typed(value, declared.get(key)) for key, value in found[1]}
                return WrittenCall(found[0], json.dumps(values, ensure_ascii=False)), end + len(_END_CALL)
        return None

    return _blocks(text, read)


def _pairs(text: str) -> dict[int, int]:
    """Returns by the place behind each `<tool_call>` the place of the `</tool_call>` that pairs off with it."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for marker in _MARKER.finditer(text):
        if marker[0] == _CALL:
            opened.append(marker.end())
        elif opened:
            pairs[opened.pop()] = marker.start()
    return pairs


def _llama_json(text: str, _: Sequence[Tool]) -> ParsedCalls:
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    calls: list[WrittenCall] = []
    place = 0
    while place < len(body):
        try:
            value, place = read_json_at(body, place)
        except ValueError:
            return text, ()
        call = _from_json(value, "parameters") or _from_json(value, "arguments")
        if call is None or len(calls) == _MOST_CALLS:
            return text, ()
        calls.append(call)
        while place < len(body) and (body[place].isspace() or body[place] == ";"):
            place += 1
    return ("", tuple(calls)) if calls else (text, ())


def _from_json(value: object, key: str) -> WrittenCall | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    if set(value) - {"name", key, "id", "type"}:
        return None
    return WrittenCall(value["name"], arguments_text(value.get(key)))


def _parameters(tools: Sequence[Tool], name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            properties: Mapping[str, Any] = (function.get("parameters") or {}).get("properties") or {}
            return properties
    return {}


def _typed(text: str, declared: Any) -> object:
    """Returns a parameter's value by its declared type; a text where that is a text or unknown."""
    value = text.removeprefix("\n").removesuffix("\n")
    if not isinstance(declared, Mapping) or declared.get("type") in ("string", None):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


_PARSERS: Final[dict[ToolFormat, Callable[[str, Sequence[Tool]], ParsedCalls]]] = {
    ToolFormat.HERMES: _hermes,
    ToolFormat.QWEN_XML: _qwen_xml,
    ToolFormat.LLAMA_JSON: _llama_json,
}
