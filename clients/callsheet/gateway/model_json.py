"""JSON that a model or a caller wrote. What other programs could not read back is refused as if it were no JSON."""

from __future__ import annotations

import json
import math
from typing import Final

MAX_DEPTH: Final = 100
"""Objects and arrays within each other. Python's own reader gives up at a depth that its caller's stack decides."""
# Objects and arrays; brackets within texts count as well, as of code in the arguments of a call.
MAX_PARTS: Final = 1 << 17


def read_json(text: str) -> object:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is none, has NaN or a number beyond all floats, is nested deeper than MAX_DEPTH, or may have more
            than MAX_PARTS parts.
    """
    if has_too_many_parts(text):
        raise ValueError("the JSON value has too many parts")
    value, end = read_json_at(text.strip(), 0)
    if end != len(text.strip()):
        raise ValueError("there is text after the JSON value")
    return value


def has_too_many_parts(text: str) -> bool:
    """Returns whether a text may have more objects and arrays than MAX_PARTS.

    So many would trigger garbage collection all the time.
    """
    return text.count("[") + text.count("{") > MAX_PARTS


def read_json_at(text: str, place: int) -> tuple[object, int]:
    """Returns the value that begins at a place of a text, and the place where it ends.

    Raises:
        ValueError: As `read_json`, but for the number of parts.
    """
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError as error:
        raise ValueError("the JSON value is nested too deep") from error
    _check_depth(value)
    return value, end


def arguments_text(given: object) -> str:
    """Returns the arguments of a call as a text that every program reads; none are an empty object.

    A text that is no JSON, whatever a model may leave out, stays as it is.
    """
    if isinstance(given, str):
        try:
            given = read_json(given) if given.strip() else None
        except ValueError:
            return str(given)
    return "{}" if given is None else json.dumps(given, ensure_ascii=False)


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("the JSON value is nested too deep")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is beyond all floats")
    return number


# Models write line feeds into texts as they are.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
