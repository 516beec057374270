"""Which lines of a log are about an id, and how one reads. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from callsheet.deploy.terminal import visible_line

_SHOWN_APART = ("timestamp", "level", "role", "event")


def matches(line: str, ids: Sequence[str]) -> bool:
    """Whether a line names all ids: as a value, or as a part of one such as "job/action"."""
    if not ids:
        return True
    named: set[str] = set()
    for value in parse(line).values():
        text = str(value)
        named.add(text)
        named.update(text.split("/"))
    return named.issuperset(ids)


def parse(line: str) -> Mapping[str, Any]:
    """The fields of a structured line; one that is not structured is an event without more."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {"event": line}
    return fields if isinstance(fields, dict) else {"event": line}


def readable(line: str, role: str) -> str:
    """A line for people: time, role, level, event, and the rest as name=value."""
    fields = {"timestamp": "", "level": "", "event": "", **parse(line)}
    rest = [f"{name}={value}" for name, value in fields.items() if name not in _SHOWN_APART]
    parts = [str(fields["timestamp"]), role, str(fields["level"]), str(fields["event"]), *rest]
    return visible_line(" ".join(part for part in parts if part))
