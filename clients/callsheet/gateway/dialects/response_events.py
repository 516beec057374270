"""The events by which a stream of OpenAI's responses tells an item of the output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callsheet.gateway.dialects.server_sent_events import pieces

_ARGUMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_PARTS: Final[Mapping[str, str]] = {
    "output_text": "response.output_text",
    "reasoning_text": "response.reasoning_text",
}


def item_events(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of an item, without their numbers; `index` is its place in the output."""
    place = {"output_index": index, "item_id": item["id"]}
    yield {"type": "response.output_item.added", "output_index": index, "item": _started(item)}
    if told := _ARGUMENTS.get(item["type"]):
        name, kind = told
        yield from _text_events(kind, place, name, item[name])
    for number, part in enumerate(item.get("content") or []):
        yield from _part_events(place | {"content_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _started(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before anything of it is told; what has no pieces is there at once."""
    emptied: dict[str, Any] = {"arguments": "", "input": "", "content": [], "encrypted_content": None}
    return {**item, **{name: empty for name, empty in emptied.items() if name in item}, "status": "in_progress"}


def _part_events(place: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": "", **{n: [] for n in more}}}
    yield from _text_events(_PARTS[part["type"]], place, "text", part["text"], more)
    yield {"type": "response.content_part.done", **place, "part": part}


def _text_events(
    kind: str, place: Mapping[str, Any], name: str, text: str, more: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """A text in pieces, then as a whole; log-probabilities come with the whole."""
    more = more or {}
    for piece in pieces(text):
        yield {"type": f"{kind}.delta", **place, "delta": piece, **{n: [] for n in more}}
    yield {"type": f"{kind}.done", **place, name: text, **more}
