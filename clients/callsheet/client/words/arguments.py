"""Checks of callers' arguments: a wrong type names the argument, its value and the rule."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from callsheet.client.errors import invalid
from callsheet.v1.names import MAX_ID

T = TypeVar("T")


def instance(field: str, value: object, expected: type[T], rule: str) -> T:
    """Returns a value of the type that is expected.

    Raises:
        InvalidArgumentError: It is of another type.
    """
    if isinstance(value, expected):
        return value
    raise invalid(field, _shown(value), rule)


def whole(field: str, value: object, rule: str) -> int:
    """Returns a whole number, numpy's too, as Python's.

    Raises:
        InvalidArgumentError: It is none.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise invalid(field, _shown(value), rule)


def optional(field: str, value: object, expected: type[T], rule: str) -> T | None:
    """Returns None, or a value of the type that is expected; see `instance`."""
    return None if value is None else instance(field, value, expected, f"{rule}, or None")


def items(field: str, values: object, expected: type[T], rule: str) -> tuple[T, ...]:
    """Returns the members of a sequence, each of the type that is expected.

    Raises:
        InvalidArgumentError: It is no sequence (a text is none), or one of them is of another type.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise invalid(field, _shown(values), f"a sequence, each {rule}")
    return tuple(instance(f"{field}[{index}]", value, expected, rule) for index, value in enumerate(values))


def listed(values: Iterable[T]) -> Sequence[T]:
    """Iterates over an iterable that may allow only one pass; other values are refused when they are encoded."""
    given: Any = values
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        given = tuple(given)
    sequence: Sequence[T] = given
    return sequence


def identifier(field: str, value: object) -> str:
    """Returns an id.

    Raises:
        InvalidArgumentError: It is no text of 1 to 256 characters.
    """
    rule = f"text of 1 to {MAX_ID} characters"
    text = instance(field, value, str, rule)
    if not 1 <= len(text) <= MAX_ID:
        raise invalid(field, text, rule)
    return text


def no_unknown(
    given: Mapping[str, Any], known: Sequence[str], hints: Mapping[str, str], others: Sequence[str] = ()
) -> None:
    """Refuses keyword arguments that are not known.

    Args:
        given: The keyword arguments.
        known: All names that are taken.
        hints: The right spelling, by name.
        others: Further names that a caller may have meant.

    Raises:
        InvalidArgumentError: One is not known; the rule names the nearest that is.
    """
    for name in given:
        if name in known:
            continue
        names = sorted({*known, *others})
        near = difflib.get_close_matches(name, names, n=1)
        hint = hints.get(name) or (f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}")
        raise invalid(name, _shown(given[name]), f"there is no such argument: {hint}")


def _shown(value: object) -> object:
    return value if isinstance(value, str | int | float) else f"{value!r} ({type(value).__name__})"
