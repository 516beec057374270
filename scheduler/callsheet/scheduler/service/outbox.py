"""Batches of encoded fields that wait to be written to a stream, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.limits.unread import UnreadBytes

MAX_ITEMS = 1024
MAX_BYTES = 1024 * 1024
# A reader this far behind has stopped reading.
MAX_WAITING_BYTES = 256 * 1024 * 1024
# Seconds that an item nobody waits for may wait for company: a message of its own costs either end far more than it.
# The next dispatch to a busy manager comes sooner.
COMPANY_WAIT = 1.0
# So many of them are company enough.
COMPANY = 64
# About what a number takes that is encoded with others.
ACKNOWLEDGEMENT_BYTES = 8

A = TypeVar("A")


@dataclass(slots=True, eq=False)
class _Batch(Generic[A]):
    """A message being filled, and about how many bytes it will have."""

    fields: list[bytes] = field(default_factory=list)
    acknowledged: list[A] = field(default_factory=list)
    size: int = 0


class Outbox(Generic[A]):
    """Messages waiting to be written to a stream, filled field by field.

    Bounded by `MAX_WAITING_BYTES`; past it the session is closed and abandoned, since its reader has stopped reading.
    So is the one with the most unread bytes once all sessions together have too many.

    Attributes:
        closing: Why the session ends, once it does.
        abandoned: Nothing more is written: what still comes is dropped.
    """

    def __init__(self, encode_acknowledged: Callable[[Sequence[A]], bytes], unread: UnreadBytes | None = None) -> None:
        """Starts empty.

        Args:
            encode_acknowledged: Makes one part of a message of all that is acknowledged in it.
            unread: What all sessions together leave unread; None counts this one alone.
        """
        self._unread = unread or UnreadBytes()
        self._encode_acknowledged = encode_acknowledged
        self._batches: deque[_Batch[A]] = deque()
        self._size = 0
        # Set while there is something to write now, or nothing more to come.
        self._due = asyncio.Event()
        self._company_timer: asyncio.TimerHandle | None = None
        self.closing: RefusedError | None = None
        self.abandoned = False

    def put(self, encoded: bytes) -> None:
        """Queues a field of the message, see `encoded_fields`, to be written as soon as the stream takes it."""
        if self._has_room(len(encoded)):
            self._batch_for(len(encoded)).fields.append(encoded)
            self._due.set()
            if self._unread.total > self._unread.max_bytes:
                self._unread.relieve()

    def acknowledge(self, what: A, *, patient: bool = False) -> None:
        """Queues an acknowledgement.

        Args:
            what: What is acknowledged.
            patient: It may wait for others, up to `COMPANY` and `COMPANY_WAIT`, before it is written.
        """
        if not self._has_room(ACKNOWLEDGEMENT_BYTES):
            return
        waiting = self._batch_for(ACKNOWLEDGEMENT_BYTES).acknowledged
        waiting.append(what)
        if not patient or len(waiting) >= COMPANY:
            self._due.set()
        elif self._company_timer is None:
            self._company_timer = asyncio.get_running_loop().call_later(COMPANY_WAIT, self._due.set)

    def _has_room(self, size: int) -> bool:
        """Returns whether the next item is taken. One too many ends the session.

        A stream cannot be ended before its reader has taken what is being written, which may be never: until then
        nothing must be kept for it.
        """
        if self._batches and self._size + size > MAX_WAITING_BYTES:
            self.end_unread("does not read its stream")
        return not self.abandoned

    def end_unread(self, rule: str = "leaves the most unread, and all sessions together leave too much") -> None:
        """Ends the session at once and lets go of what waits; its peer comes back and gets again what it missed."""
        waiting = f"{self._size} bytes"
        self.close(RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "session", waiting, rule, retry_after=1.0))
        self.abandon()

    def _batch_for(self, size: int) -> _Batch[A]:
        """The batch that the next item goes into; it is counted as being there."""
        last = self._batches[-1] if self._batches else None
        if last is None or len(last.fields) + len(last.acknowledged) >= MAX_ITEMS or last.size + size > MAX_BYTES:
            last = _Batch()
            self._batches.append(last)
            self._unread.readers.add(self)
        last.size += size
        self._size += size
        self._unread.total += size
        return last

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._size

    @property
    def backlog(self) -> int:
        """Batches that wait to be written."""
        return len(self._batches)

    def close(self, reason: RefusedError) -> None:
        """Ends the session once what is waiting has been written."""
        self.closing = self.closing or reason
        self._due.set()

    def abandon(self) -> None:
        """Nobody reads it any more: lets go of what waits, as whoever still has the session may have it for hours."""
        self.abandoned = True
        self._batches.clear()
        self._unread.total -= self._size
        self._unread.readers.discard(self)
        self._size = 0

    async def write_all(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes message after message to a stream.

        Raises:
            RefusedError: Why the session is closed, once nothing is left.
        """
        while (batch := await self.next_batch()) is not None:
            await write(batch)
        if self.closing is not None:
            raise self.closing

    async def next_batch(self) -> bytes | None:
        """Waits for a message, and returns it encoded; None when the session is closing and nothing is left."""
        await self._due.wait()
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._size -= batch.size
        self._unread.total -= batch.size
        if not self._batches:
            self._unread.readers.discard(self)
            self._wait_for_more()
        if batch.acknowledged:
            batch.fields.append(self._encode_acknowledged(batch.acknowledged))
        return b"".join(batch.fields)

    def _wait_for_more(self) -> None:
        if self._company_timer is not None:
            self._company_timer.cancel()
            self._company_timer = None
        if self.closing is None:
            self._due.clear()
