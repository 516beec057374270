"""Calls of tools in the text of a reply, in the formats that models are trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from callsheet.gateway.chat import Tool
from callsheet.gateway.conversations.renderer import WrittenCall
from callsheet.gateway.model_json import read_json, read_json_at

ParsedCalls = tuple[str, tuple[WrittenCall, ...]]
"""The text beside the calls, and the calls."""


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


_BLOCK: Final = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_FUNCTION: Final = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)\s*>(.*?)(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_PYTHON_TAG: Final = "<|python_tag|>"


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
    if parser is None or not tools:
        return text, ()
    return parser(text, tools)


def _blocks(text: str, read: Callable[[str], WrittenCall | None]) -> ParsedCalls:
    """Returns the calls between `<tool_call>` markers; a block that cannot be read stays where it is."""
    calls: list[WrittenCall] = []
    rest: list[str] = []
    end = 0
    for block in _BLOCK.finditer(text):
        call = read(block[1])
        if call is None:
            continue
        calls.append(call)
        rest.append(text[end : block.start()])
        end = block.end()
    if not calls:
        return text, ()
    rest.append(text[end:])
    return "".join(part.strip() and part for part in rest).rstrip(), tuple(calls)


def _hermes(text: str, _: Sequence[Tool]) -> ParsedCalls:
    return _blocks(text, lambda body: _from_json(_loads(body), "arguments"))


def _qwen_xml(text: str, tools: Sequence[Tool]) -> ParsedCalls:
    def read(body: str) -> WrittenCall | None:
        function = _FUNCTION.fullmatch(body)
        if function is None:
            return None
        declared = _parameters(tools, function[1])
        values = {key: _typed(value, declared.get(key)) for key, value in _PARAMETER.findall(function[2])}
        return WrittenCall(function[1], json.dumps(values, ensure_ascii=False))

    return _blocks(text, read)


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
        if call is None:
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
    arguments = value.get(key, {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return WrittenCall(value["name"], text)


def _loads(text: str) -> object:
    try:
        return read_json(text)
    except ValueError:
        return None


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
