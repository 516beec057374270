"""Messages joined from encoded fields are what the contract's own code makes of them."""

from __future__ import annotations

import pytest
from callsheet.v1 import client_service_pb2, common_pb2
from callsheet.wire.encoded_fields import embedded, tag
from google.protobuf import struct_pb2


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_a_field_of_any_size(size: int) -> None:
    output = client_service_pb2.ActionOutput(chunk=common_pb2.OutputChunk(content=bytes(size)))
    encoded = output.chunk.SerializeToString()
    number = client_service_pb2.ActionOutput.CHUNK_FIELD_NUMBER
    assert embedded(tag(number), encoded) == output.SerializeToString()


def test_a_number_that_takes_two_bytes() -> None:
    assert tag(15) == b"\x7a"
    assert tag(16) == b"\x82\x01"


def test_joined_parts_are_merged() -> None:
    first = struct_pb2.Struct(fields={"a": struct_pb2.Value(number_value=1.0)})
    second = struct_pb2.Struct(fields={"b": struct_pb2.Value(number_value=2.0)})
    joined = struct_pb2.Struct.FromString(first.SerializeToString() + second.SerializeToString())
    assert dict(joined.items()) == {"a": 1.0, "b": 2.0}
