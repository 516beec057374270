"""What all streams together leave unread: bounded, at the cost of whoever leaves the most."""

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
    """Counts what waits for the readers of all streams.

    Attributes:
        total: Bytes that wait now.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Starts with nothing.

        Args:
            max_bytes: Beyond it the stream with the most of them ends.
        """
        self.total = 0
        self._max_bytes = max_bytes
        self._readers: set[Reader] = set()

    def add(self, reader: Reader, size: int) -> None:
        """Counts what has come for a reader."""
        self._readers.add(reader)
        self.total += size
        while self.total > self._max_bytes and self._readers:
            max(self._readers, key=lambda each: each.unread_bytes).end_unread()

    def take(self, reader: Reader, size: int) -> None:
        """Counts what a reader has taken, or what was dropped."""
        self.total -= size
        if not reader.unread_bytes:
            self._readers.discard(reader)
