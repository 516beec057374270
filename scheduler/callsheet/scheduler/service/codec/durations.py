"""Seconds as durations of the contract."""

from __future__ import annotations

from google.protobuf import duration_pb2


def to_duration(seconds: float) -> duration_pb2.Duration:
    """Returns seconds as a Duration."""
    duration = duration_pb2.Duration()
    fill_duration(duration, seconds)
    return duration


def fill_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Sets an empty Duration from seconds."""
    message.seconds = whole = int(seconds)
    nanos = int((seconds - whole) * 1e9)
    if nanos:
        message.nanos = nanos
