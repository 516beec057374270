"""Bounds the bytes that all streams together leave unread; the stream that leaves the most pays."""

from __future__ import annotations

from typing import Protocol

DEFAULT_MAX_BYTES = 1 << 30


class Reader(Protocol):
    """A stream whose reader leaves something unread."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait to be written to it."""

    def end_unread(self) -> None:
        """Ends it and lets go of what waits."""


class UnreadBytes:
    """Counts what waits for the readers of all streams. They count in it themselves: this comes with every item.

    Attributes:
        total: Bytes that wait now.
        max_bytes: Beyond it `relieve` must be called.
        readers: Those for whom something waits.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Starts with nothing."""
        self.total = 0
        self.max_bytes = max_bytes
        self.readers: set[Reader] = set()

    def relieve(self) -> None:
        """Ends the streams that leave the most unread, one after the other, until there is room."""
        while self.total > self.max_bytes and self.readers:
            reader = max(self.readers, key=lambda each: each.unread_bytes)
            self.readers.discard(reader)
            reader.end_unread()
