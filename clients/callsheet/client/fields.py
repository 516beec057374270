"""Puts values into fields of messages; where one does not fit, the error names the field, the value and the rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from callsheet.client.errors import invalid
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBER: Final = "a number"
_RULES: Final = {
    FieldDescriptor.TYPE_INT32: f"a whole number from {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.TYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.TYPE_INT64: f"a whole number from {-(2**63)} to {2**63 - 1}",
    FieldDescriptor.TYPE_UINT64: f"a whole number from 0 to {2**64 - 1}",
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_FLOAT: _NUMBER,
    FieldDescriptor.TYPE_BOOL: "True or False",
    FieldDescriptor.TYPE_STRING: "text that UTF-8 can write",
    FieldDescriptor.TYPE_BYTES: "bytes",
}
# What protobuf raises for a value out of range, or of another type.
_MISFITS: Final = (TypeError, ValueError)


def put(message: Message, where: str, **values: Any) -> None:
    """Sets fields of a message.

    Args:
        message: The message.
        where: Its path from the request's root; empty for the root.
        values: By name of the field; a value that is itself a message is not taken.

    Raises:
        InvalidArgumentError: A value does not fit its field.
    """
    for name, value in values.items():
        try:
            setattr(message, name, value)
        except _MISFITS as error:
            raise invalid(_path(where, name), value, _rule(message, name)) from error


def put_list(message: Message, where: str, name: str, values: Iterable[Any]) -> None:
    """Fills a repeated field; see `put`."""
    try:
        getattr(message, name).extend(values)
    except _MISFITS as error:
        index, value = _first_misfit(type(message)(), name, values)
        path = _path(where, name) if index is None else f"{_path(where, name)}[{index}]"
        rule = f"a sequence, each {_rule(message, name)}" if index is None else _rule(message, name)
        raise invalid(path, value, rule) from error


def put_map(message: Message, where: str, name: str, values: Any) -> None:
    """Fills a map of text to text; see `put`."""
    try:
        getattr(message, name).update(values)
    except (AttributeError, *_MISFITS) as error:
        raise invalid(_path(where, name), values, "names and values are text that UTF-8 can write") from error


def _first_misfit(scratch: Message, name: str, values: Any) -> tuple[int | None, Any]:
    """Index and value of what does not fit; None and all of it if it is no sequence."""
    try:
        numbered = enumerate(values)
    except TypeError:
        return None, values
    for index, value in numbered:
        try:
            getattr(scratch, name).append(value)
        except _MISFITS:
            return index, value
    return None, values


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _rule(message: Message, name: str) -> str:
    return _RULES[message.DESCRIPTOR.fields_by_name[name].type]
