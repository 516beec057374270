"""Reads fields of parsed TOML or JSON with their rules; whatever is wrong is refused by field, value and rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import TracebackType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class InputError(ValueError):
    """A file holds something it must not: the message names field, value and rule."""

    def __init__(self, where: str, value: object, rule: str) -> None:
        super().__init__(f"{where}: {value!r}: {rule}")


@dataclass(frozen=True, slots=True)
class Between:
    """Marks a field that is a number: the least and the greatest that a file may give."""

    low: float = 0.0
    high: float = math.inf


class InputTable:
    """One table of an input file. As a context manager it refuses fields that nobody asked for.

    Every method takes the field's name and, where the field may be missing, a default. All raise `InputError`.
    """

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, Mapping):
            raise InputError(where, values, "must be a table")
        self._values: Mapping[str, object] = values
        self._asked: set[str] = set()
        self._where = where

    def __enter__(self) -> InputTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._refuse_unknown()

    def where(self, field: str) -> str:
        """The field's full name, for messages."""
        return f"{self._where}.{field}"

    def read(self, kind: Callable[..., T], /, **given: Any) -> T:
        """An object of a dataclass: what is not given comes from the table, field by field.

        A field's type says how it is read, and its default is the class's. A number may be marked with its bounds
        (`Between`); a field of another type is marked with what reads it, a function of table, name and default.
        """
        for name, marked, default in _fields(kind):
            if name not in given:
                given[name] = self._read_field(name, marked, default)
        return kind(**given)

    def whole(self, kind: Callable[..., T]) -> T:
        """The object that the table is: as `read`, and no other fields."""
        with self:
            return self.read(kind)

    def has(self, field: str) -> bool:
        """Whether the field is there."""
        return field in self._values

    def value(self, field: str, default: object = None) -> object:
        """The field as it is; required where there is no default."""
        self._asked.add(field)
        found = self._values.get(field, default)
        if found is None:
            raise InputError(self.where(field), None, "is required")
        return found

    def text(self, field: str, default: str | None = None, among: Iterable[str] = ()) -> str:
        """A string, one of `among` if that is not empty."""
        found = self.value(field, default)
        if not isinstance(found, str):
            raise InputError(self.where(field), found, "must be a string")
        allowed = sorted(among)
        if allowed and found not in allowed:
            raise InputError(self.where(field), found, f"must be one of {', '.join(allowed)}")
        return found

    def flag(self, field: str, default: bool) -> bool:
        """A boolean."""
        found = self.value(field, default)
        if not isinstance(found, bool):
            raise InputError(self.where(field), found, "must be true or false")
        return found

    def number(self, field: str, default: float | None = None, low: float = 0.0, high: float = math.inf) -> float:
        """A number between `low` and `high`, both allowed; infinity only as a default."""
        found = self.value(field, default)
        if found is default and default is not None:
            return default
        return number(found, self.where(field), low, high)

    def integer(self, field: str, default: int | None = None, low: float = 0, high: float = math.inf) -> int:
        """A whole number between `low` and `high`, both allowed."""
        found = self.number(field, default, low, high)
        if found != int(found):
            raise InputError(self.where(field), found, "must be a whole number")
        return int(found)

    def table(self, field: str) -> InputTable:
        """A table within this one."""
        return InputTable(self.value(field), self.where(field))

    def tables(self, field: str) -> list[InputTable]:
        """A list of tables; empty where the field is missing."""
        found = self.value(field, [])
        if not isinstance(found, list):
            raise InputError(self.where(field), found, "must be a list of tables")
        return [InputTable(item, f"{self.where(field)}[{index}]") for index, item in enumerate(found)]

    def names(self) -> list[str]:
        """The names of all fields, for tables whose keys are names; nothing in it counts as unknown then."""
        self._asked.update(self._values)
        return list(self._values)

    def _read_field(self, name: str, marked: Any, default: Any) -> object:
        kind, mark = get_args(marked) if get_origin(marked) is Annotated else (marked, Between())
        if not isinstance(mark, Between):
            return mark(self, name, default)
        if kind is int:
            return self.integer(name, default, mark.low, mark.high)
        if kind is float:
            return self.number(name, default, mark.low, mark.high)
        return self.text(name, default) if kind is str else self.flag(name, default)

    def _refuse_unknown(self) -> None:
        for field, found in self._values.items():
            if field not in self._asked:
                raise InputError(
                    self.where(field), found, f"is unknown here; known are {', '.join(sorted(self._asked))}"
                )


@cache
def _fields(kind: Any) -> list[tuple[str, Any, Any]]:
    """The fields of a dataclass: name, type as it is marked, and default, None where there is none."""
    hints = get_type_hints(kind, include_extras=True)
    return [(each.name, hints[each.name], None if each.default is MISSING else each.default) for each in fields(kind)]


def number(found: object, where: str, low: float, high: float) -> float:
    """A finite number in [low, high].

    Raises:
        InputError: It is not.
    """
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not _is_finite(found):
        raise InputError(where, found, "must be a finite number")
    if not low <= found <= high:
        rule = f"must be at least {low:g}" if high == math.inf else f"must be between {low:g} and {high:g}"
        raise InputError(where, found, rule)
    return float(found)


def _is_finite(found: float) -> bool:
    try:
        return math.isfinite(found)
    except OverflowError:  # a whole number that no float can be
        return False
