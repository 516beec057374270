"""Input checked by the types it is read into; whatever is wrong is refused by place, value and rule."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
NOTHING_ELSE: Final = ConfigDict(extra="forbid")
"""For a dataclass's `__pydantic_config__`: fields that it does not have are refused."""


class InputError(ValueError):
    """A file or an argument holds something it must not: the message names place, value and rule."""

    def __init__(self, where: str, value: object, rule: str) -> None:
        super().__init__(f"{where}: {value!r}: {rule}")


def validated(kind: type[T], given: object, where: str) -> T:
    """A value read into a type: from Python's objects, or from JSON where it is a text.

    Args:
        kind: For instance a dataclass.
        given: What a file holds.
        where: The file, or the place in it.

    Raises:
        InputError: It is not such a value.
    """
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        found: T = adapter.validate_json(given) if isinstance(given, str) else adapter.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        value = None if first["type"] == "missing" else first["input"]
        value = f"{value[:40]}..." if isinstance(value, str) and len(value) > 40 else value
        raise InputError(where + "".join(steps), value, first["msg"]) from error
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
