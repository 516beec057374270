"""The client's values as plain JSON values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from callsheet.client.words.outcomes import Outcome


def outcome_name(outcome: Outcome[Any]) -> str:
    """Returns the name of an outcome in lower case."""
    return type(outcome).__name__.lower()


def plain_outcome(outcome: Outcome[Any]) -> dict[str, Any]:
    """An outcome as a JSON object, with its name under "outcome"."""
    plain: dict[str, Any] = to_plain(outcome)
    return {"outcome": outcome_name(outcome), **plain}


def to_plain(value: Any) -> Any:
    """A value made of dataclasses, enums, bytes and collections as one that JSON can hold.

    Bytes become text, with replacement characters where they are not UTF-8; numbers that JSON lacks become None.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
