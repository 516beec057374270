"""Arbitrary messages of a type, for fuzzing: every field may have any value of its type, or none."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)

_INT32 = st.one_of(st.integers(-2, 5), st.integers(-(1 << 31), (1 << 31) - 1))
_INT64 = st.one_of(st.integers(-2, 5), st.integers(-(1 << 63), (1 << 63) - 1))
_TEXT = st.one_of(st.sampled_from(["", "a", "cpu", "memory", "gpu", "t", "x" * 257]), st.text(max_size=6))
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_DOUBLE: st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats()),
    FieldDescriptor.TYPE_ENUM: st.integers(-1, 9),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
}


def any_message(message_type: type[M]) -> st.SearchStrategy[M]:
    """Messages of a type."""
    return _fields(message_type.DESCRIPTOR).map(lambda fill: _filled(message_type(), fill))


def _filled(message: M, values: dict[str, Any]) -> M:
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        target = getattr(message, name)
        if _is_map(field) and value and isinstance(next(iter(value.values())), dict):
            for key, each in value.items():
                _filled(target[key], each)
        elif _is_map(field):
            target.update(value)
        elif _is_repeated(field) and field.message_type is not None:
            for each in value:
                _filled(target.add(), each)
        elif _is_repeated(field):
            target.extend(value)
        elif field.message_type is not None:
            target.SetInParent()
            _filled(target, value)
        else:
            setattr(message, name, value)
    return message


# Descriptors are of another class in each implementation of protobuf.
def _fields(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Values for some of the fields; the last one of a oneof that is set wins, as on the wire."""
    return st.fixed_dictionaries({}, optional={field.name: _values(field) for field in descriptor.fields})


def _values(field: Any) -> st.SearchStrategy[Any]:
    if _is_map(field):
        key, value = field.message_type.fields
        return st.dictionaries(_SCALARS[key.type], _values(value), max_size=3)
    descriptor = field.message_type
    one = st.deferred(lambda: _fields(descriptor)) if descriptor is not None else _SCALARS[field.type]
    return st.lists(one, max_size=3) if _is_repeated(field) else one


def _is_repeated(field: Any) -> bool:
    # `label` is deprecated in new releases of protobuf and `is_repeated` is missing in old ones.
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED
    return bool(repeated)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
