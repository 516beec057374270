"""Fields of messages that are encoded already.

A message is its fields one after the other, in any order, and what several of them give of one embedded message is
merged when it is read. So a part that is there as bytes need not be copied into the message that carries it, and parts
that many messages have in common are encoded once. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

_LENGTH_DELIMITED = 2
_BYTES = [bytes((value,)) for value in range(256)]


def tag(number: int) -> bytes:
    """Returns the beginning of an embedded message (or bytes, or text) that is the field of this number."""
    return _varint(number << 3 | _LENGTH_DELIMITED)


def embedded(field_tag: bytes, content: bytes) -> bytes:
    """A field with an encoded message (or bytes, or UTF-8 text) as its value; see `tag`."""
    return field_tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A whole number from 0, seven bits to a byte, the lowest first; all bytes but the last have their high bit set."""
    if value < 0x80:
        return _BYTES[value]
    if value < 0x4000:
        return _BYTES[value & 0x7F | 0x80] + _BYTES[value >> 7]
    return _BYTES[value & 0x7F | 0x80] + _varint(value >> 7)
