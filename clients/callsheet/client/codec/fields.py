"""Puts values into fields of messages.

Where one does not fit, the error names the field, the value and the rule. Contents of any size are inline, or by
reference. Pure: uploads and fetches are collected, not made.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Real
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_type_hints

from callsheet.client.errors import HALF, InvalidArgumentError, bad_text, invalid
from callsheet.client.words.arguments import instance, items
from callsheet.v1 import common_pb2
from callsheet.v1.names import MAX_INLINE_BYTES
from google.protobuf import duration_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

EnumT = TypeVar("EnumT", bound=Enum)
_Put: TypeAlias = Callable[[Message, str, Any, Any], None]
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
# A Duration's most: ten thousand years.
_MAX_SECONDS: Final = 315_576_000_000
MAX_INLINE_TOTAL_BYTES = 512 * 1024
"""Inline bytes of one action after which its further blobs go by reference too, to keep the streams thin."""


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
            raise _misfit(error, _path(where, name), value, _rule(message, name)) from error


def put_same(
    message: Message, where: str, value: Any, blobs: BlobWriter | None = None, but: Sequence[str] = ()
) -> None:
    """Sets the fields of a message that a value (a dataclass) has under the same names; see `put`.

    Lists are filled, values of other dataclasses and enums become their messages and numbers, and durations are of
    fields with "_s" behind the name. None leaves a field out. A number that has None for the default is at least 1 if
    the contract has 0 for it.

    Args:
        message: The message.
        where: Its path.
        value: The dataclass.
        blobs: Writes contents; needed by values that have some.
        but: Names that the caller puts.
    """
    made: Any = type(value)
    for name, default, put_field in _puts(made, message.DESCRIPTOR, but):
        given = getattr(value, name)
        if given is not default and given is not None:
            put_field(message, where, given, blobs)


@cache
def _puts(made: Any, contract: Descriptor, but: Sequence[str]) -> tuple[tuple[str, object, _Put], ...]:
    """Returns for each field of a dataclass that `put_same` puts: its name, the default to leave out, and the put."""
    hints, found = get_type_hints(made), []
    for each in fields(made):
        field = contract.fields_by_name.get(each.name) or contract.fields_by_name.get(each.name.removesuffix("_s"))
        if field is not None and each.name not in but:
            # An empty default is the contract's too, and so is that of an enum, unless a field that is not set differs.
            is_contracts = not field.has_presence and (isinstance(each.default, Enum) or not each.default)
            put_field = _put_of(field, each.default, _part_of(hints[each.name]))
            found.append((each.name, each.default if is_contracts else None, put_field))
    return tuple(found)


def _part_of(hint: Any) -> Any:
    """Returns the dataclass or enum in a type, for instance in `Sequence[SandboxFile]`; None without one."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Enum)):
        return hint
    return next(filter(None, map(_part_of, get_args(hint))), None)


def _put_of(field: FieldDescriptor, default: object, part: Any) -> _Put:
    name, contract = field.name, field.message_type
    if field.enum_type is not None:
        members, rule = _enum_numbers(part, field.enum_type), f"a member of {part.__name__}"
        return lambda message, where, given, _: setattr(
            message, name, members[instance(_path(where, name), given, part, rule)]
        )
    if contract is None:
        if isinstance(field.default_value, list):
            put_values = _put_texts if field.type == FieldDescriptor.TYPE_STRING else put_list
            return lambda message, where, given, _: put_values(message, where, name, given)
        if default is None and not field.has_presence:
            return lambda message, where, given, _: put(
                message, where, **{name: at_least_one(_path(where, name), given)}
            )
        return lambda message, where, given, _: put(message, where, **{name: given})
    if contract.GetOptions().map_entry:
        return lambda message, where, given, _: put_map(message, where, name, given)
    if contract is duration_pb2.Duration.DESCRIPTOR:
        return lambda message, where, given, _: put_durations(message, where, **{name: given})
    if contract is common_pb2.Blob.DESCRIPTOR:
        return lambda message, where, given, blobs: blobs.put(getattr(message, name), _path(where, name), given)
    put_part = _put_parts if isinstance(field.default_value, list) else _put_part
    return lambda message, where, given, blobs: put_part(getattr(message, name), _path(where, name), part, given, blobs)


def _enum_numbers(members: Any, contract: EnumDescriptor) -> dict[Any, int]:
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", contract.name).upper()
    return {member: contract.values_by_name[f"{prefix}_{member.name}"].number for member in members}


def _put_part(message: Any, where: str, part: Any, given: Any, blobs: BlobWriter | None) -> None:
    message.SetInParent()
    put_same(message, where, instance(where, given, part, f"a value of {part.__name__}"), blobs)


def _put_parts(added: Any, where: str, part: Any, given: Any, blobs: BlobWriter | None) -> None:
    for index, each in enumerate(items(where, given, part, f"a value of {part.__name__}")):
        put_same(added.add(), f"{where}[{index}]", each, blobs)


def put_list(message: Message, where: str, name: str, values: Iterable[Any]) -> None:
    """Fills a repeated field; see `put`."""
    try:
        getattr(message, name).extend(values)
    except _MISFITS as error:
        index, value = _first_misfit(type(message)(), name, values)
        path = _path(where, name) if index is None else f"{_path(where, name)}[{index}]"
        rule = f"a sequence, each {_rule(message, name)}" if index is None else _rule(message, name)
        raise _misfit(error, path, value, rule) from error


def _put_texts(message: Message, where: str, name: str, given: Any) -> None:
    put_list(message, where, name, items(_path(where, name), given, str, "text"))


def put_map(message: Message, where: str, name: str, values: Any) -> None:
    """Fills a map of text to text; see `put`."""
    if not isinstance(values, dict | Mapping):
        raise invalid(_path(where, name), values, "a mapping of names to values, both text")
    if not values:
        return
    try:
        getattr(message, name).update(values)
    except (AttributeError, *_MISFITS) as error:
        rule = "names and values are text that UTF-8 can write"
        raise _misfit(error, _path(where, name), values, rule) from error


def put_durations(message: Message, where: str, **seconds: float | None) -> None:
    """Sets durations, None left out; see `put` and `duration`."""
    for name, given in seconds.items():
        if given is not None:
            getattr(message, name).CopyFrom(duration(_path(where, name), given))


def duration(field: str, seconds: float) -> duration_pb2.Duration:
    """Returns a duration.

    Raises:
        InvalidArgumentError: `seconds` is no number, negative, or more than a duration can be.
    """
    if not (is_number(seconds) and 0 <= seconds <= _MAX_SECONDS):
        raise invalid(field, seconds, f"seconds are from 0 to {_MAX_SECONDS}")
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=min(round((seconds - whole) * 1e9), 999_999_999))


def numbers(members: Mapping[int, EnumT]) -> dict[EnumT, Any]:
    """Returns the contract's number of each member of an enum; see `*_values.py` of the contract."""
    return {member: number for number, member in members.items()}


def is_number(value: object) -> bool:
    """Returns whether a value is a real number."""
    return isinstance(value, Real)


def positive(field: str, value: float) -> float:
    """Returns a number that is above 0 and finite; raises InvalidArgumentError for any other value."""
    if not (is_number(value) and 0 < value < math.inf):
        raise invalid(field, value, "above 0 and finite")
    return value


def at_least_one(field: str, value: int | None) -> int:
    """Returns a number from 1, or 0 for None: the default. Raises InvalidArgumentError for any other value."""
    if value is None:
        return 0
    if not (is_number(value) and value >= 1):
        raise invalid(field, value, "at least 1, or None for the default")
    return value


def _misfit(error: Exception, field: str, value: object, rule: str) -> InvalidArgumentError:
    if isinstance(error, UnicodeEncodeError):
        return bad_text(field, str(value), rule, HALF)
    return invalid(field, value, rule)


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


class BlobWriter:
    """Makes blobs and collects the contents that have to be stored before they can be referred to.

    Attributes:
        uploads: Contents by their SHA-256.
    """

    __slots__ = ("_inline_bytes", "uploads")

    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}
        self._inline_bytes = 0

    def blob(self, field: str, content: bytes) -> common_pb2.Blob:
        """Returns a blob; see `put`."""
        message = common_pb2.Blob()
        self.put(message, field, content)
        return message

    def put(self, message: common_pb2.Blob, field: str, content: bytes) -> None:
        """Sets a blob: inline while small, otherwise by reference."""
        if not isinstance(content, bytes):
            raise invalid(field, type(content).__name__, "content is bytes")
        size = len(content)
        if size <= MAX_INLINE_BYTES and self._inline_bytes + size <= MAX_INLINE_TOTAL_BYTES:
            self._inline_bytes += size
            message.inline = content
            return
        sha256 = hashlib.sha256(content).hexdigest()
        message.reference.sha256, message.reference.size = sha256, size
        self.uploads[sha256] = content


class BlobReader:
    """Reads blobs and collects the references whose bytes have to be fetched first.

    Attributes:
        missing: References that were met and are not in `fetched`, by SHA-256.
    """

    __slots__ = ("_fetched", "missing")

    def __init__(self, fetched: Mapping[str, bytes]) -> None:
        self._fetched = fetched
        self.missing: dict[str, common_pb2.PayloadReference] = {}

    def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns the bytes; none for a reference that is missing."""
        if not blob.HasField("reference"):
            return blob.inline
        content = self._fetched.get(blob.reference.sha256)
        if content is None:
            self.missing[blob.reference.sha256] = blob.reference
            return b""
        return content
