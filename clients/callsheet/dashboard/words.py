"""Numbers, times and names of the contract as a reader takes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from callsheet.v1 import action_pb2, admin_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp

NOTHING: Final = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def duration(seconds: float | None) -> str:
    """Returns a time span with two units at most."""
    if seconds is None:
        return NOTHING
    if seconds < 0.0:
        return f"-{duration(-seconds)}"
    for unit, name, below, small in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1.0, "s")):
        if seconds >= unit:
            rest = int(seconds % unit / below)
            return f"{int(seconds / unit)} {name} {rest} {small}" if rest else f"{int(seconds / unit)} {name}"
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    return f"{seconds:.1f} s"


def number(value: float) -> str:
    """Returns a number with as many digits as a reader takes in."""
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    # Prices of tokens are small, and money is never told in powers of ten.
    return f"{value:,.1f}" if abs(value) >= 100 else f"{Decimal(f'{value:.3g}'):f}"


def clock_time(seconds: float | None) -> str:
    """Returns a time of day, in UTC."""
    if not seconds:
        return NOTHING
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def seconds_of(stamp: Timestamp) -> float:
    """Returns a timestamp in seconds since 1970."""
    return stamp.seconds + stamp.nanos / 1e9


def units(amounts: Mapping[str, float]) -> str:
    """Returns amounts by resource in one line."""
    return ", ".join(f"{number(amount)} {name}" for name, amount in sorted(amounts.items())) or NOTHING


def enum_name(enum: Any, value: int, otherwise: str = "unspecified") -> str:
    """Returns a value of an enum as commands spell it; one that is not set, or that came later, otherwise."""
    if not value or value not in enum.values():
        return otherwise
    name: str = enum.Name(value)
    return name.removeprefix(enum.Name(0).removesuffix("UNSPECIFIED")).lower()


def kind_name(kind: int) -> str:
    """Returns a kind of action."""
    return enum_name(action_pb2.ActionKind, kind, "action")


def state_name(state: int) -> str:
    """Returns a state of an action."""
    return enum_name(admin_service_pb2.ActionState, state, "unknown")


def wait_name(reason: int) -> str:
    """Returns why an action waits, in a few words."""
    return enum_name(admin_service_pb2.WaitReason, reason, "").replace("_", " ")
