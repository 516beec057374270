"""Values that a test takes for granted: of a kind, or there at all. If one is not, the test fails and shows it."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def expect(kind: type[Value], value: object) -> Value:
    """Returns the value, which must be of a kind."""
    assert isinstance(value, kind), value
    return value


def present(value: Value | None) -> Value:
    """Returns the value, which must not be None."""
    assert value is not None
    return value
