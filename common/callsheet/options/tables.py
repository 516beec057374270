"""Settings from the tables of a TOML file: by the fields of their classes, and each wrong one named with its rule."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

S = TypeVar("S")
NOTHING: Mapping[str, object] = {}

_RULES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number of at least 0",
    float: "a number of at least 0",
    str: "a text",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a file.

    Raises:
        ValueError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def from_table(
    kind: type[S], where: str, table: object, known: Mapping[str, object] = NOTHING, *, texts: bool = False
) -> S:
    """Makes settings of a table.

    Args:
        kind: Their class, a dataclass.
        where: Names the table in errors.
        table: Values by the names of fields.
        known: Fields that no table has.
        texts: Whether values are texts, "2" for 2.

    Raises:
        ValueError: It is no table, or breaks a rule; the message names the field, the value and the rule.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: {table!r}: must be a table")
    hints = get_type_hints(kind)
    offered = {each.name: each for each in fields(kind) if each.name not in known}  # type: ignore[arg-type]
    values = dict(known)
    for key, value in table.items():
        if key not in offered:
            raise ValueError(f"{where}: {key!r}: must be one of {', '.join(sorted(offered))}")
        values[key] = _value(f"{where}: {key}", hints[key], value, texts)
    for name, each in offered.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{where}: {name}: must be given")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _value(where: str, hint: Any, value: Any, texts: bool) -> Any:
    origin, parts = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: {value!r}: must be a list")
        return tuple(_one(where, parts[0], each, texts) for each in value)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {value!r}: must be a table")
        return {key: _one(f"{where}.{key}", parts[1], each, texts) for key, each in value.items()}
    return _one(where, parts[0] if parts else hint, value, texts)


def _one(where: str, kind: Any, value: Any, texts: bool) -> Any:
    if issubclass(kind, Enum):
        names = [each.value for each in kind]
        if value in names:
            return kind(value)
        raise ValueError(f"{where}: {value!r}: must be one of {', '.join(names)}")
    if texts and kind in (bool, int):
        value = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    accepted = {float: (int, float), Path: (str,)}.get(kind, (kind,))
    if type(value) in accepted and (isinstance(value, str) or 0 <= value < math.inf):
        return kind(value)
    raise ValueError(f"{where}: {value!r}: must be {_RULES.get(kind, 'a text')}")
