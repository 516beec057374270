"""Calls as Qwen3-Coder and Qwen 3.5 write them: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

A value is any text, these markers too. So it ends where its own marker pairs off with the one that opened it. Where the
markers do not pair off, it ends where a line begins with another parameter. Each look is a single pass.
"""

from __future__ import annotations

import re
from typing import Final

_FUNCTION: Final = "<function="
_END_FUNCTION: Final = "</function>"
_PARAMETER: Final = "<parameter="
_END_PARAMETER: Final = "</parameter>"
_MARKER: Final = re.compile(f"{_PARAMETER}|{_END_PARAMETER}")
_LONGEST_NAME: Final = 256


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
    for marker in _MARKER.finditer(text):
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
