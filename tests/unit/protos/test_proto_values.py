"""Each generated value has each field of its message, and each of its enums the contract's members."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pytest
from callsheet.client.codec.jobs import encode_job, encode_trajectory
from callsheet.v1 import job_values, values
from google.protobuf.descriptor import FieldDescriptor

from scripts.proto_values import ENUMS, MESSAGES, Enumeration, Value, constant

# Of each type of field one that no default has.
SAMPLES: Final[dict[int, Any]] = {FieldDescriptor.CPPTYPE_STRING: "text", FieldDescriptor.CPPTYPE_BOOL: True}
NUMBER: Final = 2
NEWER_THAN_THIS_CODE: Final = 99
PROTOS: Final = Path(values.__file__).parent


def homes(name: str) -> tuple[Any, Any]:
    """The modules of messages and values that have a name of the contract."""
    found = (importlib.import_module(f"callsheet.v1.{path.stem}_pb2") for path in PROTOS.glob("*.proto"))
    (messages,) = (each for each in found if hasattr(each, name))
    return messages, importlib.import_module(messages.__name__.replace("_pb2", "_values"))


def made_from(name: str) -> tuple[Any, Any]:
    """A message's class, and the function that makes a value of it."""
    messages, home = homes(name)
    make = getattr(home, MESSAGES[name].name or name).from_message
    takes_blobs = "read" in inspect.signature(make).parameters
    return getattr(messages, name), partial(make, read=attrgetter("inline")) if takes_blobs else make


def places(message: Any, value: Value) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The fields that a value has, each with the fields that lead to it."""
    for field in message.DESCRIPTOR.fields:
        if field.name in value.flat.split():
            yield from ((inner, (field.name,)) for inner in field.message_type.fields)
        elif field.name not in value.without.split():
            yield field, ()


def put(message: Any, field: Any) -> Any:
    """Sets a field to something; returns what the value has then, or None if that is a value itself."""
    place, type_ = getattr(message, field.name), field.message_type
    if type_ is None:
        sample = max(field.enum_type.values_by_number) if field.enum_type else SAMPLES.get(field.cpp_type, NUMBER)
        if hasattr(place, "append"):
            place.append(sample)
            return None if field.enum_type else (sample,)
        setattr(message, field.name, sample)
        return None if field.enum_type else sample
    if type_.GetOptions().map_entry:
        key, item = (SAMPLES.get(each.cpp_type, NUMBER) for each in type_.fields)
        place[key] = item
        return {key: item}
    if hasattr(place, "add"):
        place.add()
    elif type_.name == "Blob":
        place.inline = b"bytes"
        return b"bytes"
    elif type_.full_name.startswith("google."):
        place.seconds, place.nanos = 5, 500_000_000
        return 5.5
    else:
        for inner in type_.fields:
            put(place, inner)
    return None


TAKEN: Final = {name: value for name, value in MESSAGES.items() if not value.is_sent}


@pytest.mark.parametrize(("name", "value"), TAKEN.items(), ids=TAKEN)
def test_every_field_of_a_message_is_an_attribute_of_its_own(name: str, value: Value) -> None:
    kind, make = made_from(name)
    empty = make(kind())
    reached: set[str] = set()
    attributes = {each.name for each in fields(empty)}
    for field, path in places(kind(), value):
        message = kind()
        sample = put(getattr(message, path[0]) if path else message, field)
        filled = make(message)
        if field.enum_type and not hasattr(getattr(message, field.name), "append"):
            setattr(message, field.name, NEWER_THAN_THIS_CODE)
            assert make(message) == empty
        changed = {each for each in attributes if getattr(filled, each) != getattr(empty, each)} - reached
        assert len(changed) == 1 or field.full_name.endswith("CommandResult.signal")
        assert sample is None or sample in [getattr(filled, each) for each in changed]
        reached |= changed
    assert reached == attributes


@pytest.mark.parametrize(("name", "enum"), ENUMS.items(), ids=ENUMS)
def test_every_value_of_an_enum_is_a_member(name: str, enum: Enumeration) -> None:
    messages, home = homes(name)
    theirs, ours = getattr(messages, name), getattr(home, enum.name or name)
    numbers = getattr(home, constant(name))
    unspecified = {constant(name) + "_UNSPECIFIED"} if enum.unknown != "UNSPECIFIED" else set()
    assert {f"{constant(name)}_{member.name}" for member in ours} == {*theirs.keys()} - unspecified
    assert all(theirs.Value(f"{constant(name)}_{member.name}") == number for number, member in numbers.items())
    assert all(member.value == member.name.lower() for member in ours)


GROUP: Final = job_values.GroupDescription("g", 4, 3, job_values.OnInfra.MASK, 2)


@pytest.mark.parametrize(
    ("value", "encode"),
    [
        (
            job_values.JobDescription(
                "j", 2.0, job_values.PriorityClass.EVAL, 3, job_values.Staleness(1, 2, 3), 4.5, True, 5.5, True, 6
            ),
            encode_job,
        ),
        (job_values.JobDescription("j"), encode_job),
        (job_values.TrajectoryDescription("j", "t", GROUP, 1.5, 2.5), encode_trajectory),
        (job_values.TrajectoryDescription("j", "t"), encode_trajectory),
    ],
)
def test_a_description_comes_back_as_it_was_sent(value: Any, encode: Any) -> None:
    assert type(value).from_message(encode(value)) == value
