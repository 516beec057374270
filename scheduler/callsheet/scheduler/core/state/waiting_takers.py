"""Requests for batches that cannot be given yet, in the order in which they came.

A client asks again and again under one id, because each of its rpcs waits for a bounded time. Its place is kept for a
while after an rpc ended, so that the next one finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from callsheet.scheduler.core.words.peers import BatchTaker

# Requests of a job that wait for a batch.
MAX_TAKERS: Final = 64
# For how many seconds the place of a request is kept whose rpc has ended.
PLACE_KEPT_S: Final = 10.0


@dataclass(slots=True, eq=False)
class WaitingTaker:
    """One request.

    Attributes:
        gone_at: When it was first seen that its rpc had ended, in seconds since the epoch; None while it has not.
    """

    taker: BatchTaker
    batch_id: str
    at_least: int
    at_most: int
    lease_s: float
    gone_at: float | None = None


@dataclass(slots=True, eq=False)
class WaitingTakers:
    """The requests of one job."""

    _entries: list[WaitingTaker] = field(default_factory=list)

    def __iter__(self) -> Iterator[WaitingTaker]:
        """Those that somebody waits for, in order."""
        return (each for each in self._entries if not each.taker.gone)

    def __len__(self) -> int:
        """How many somebody waits for."""
        return sum(1 for _ in self)

    @property
    def first(self) -> WaitingTaker | None:
        """The first that somebody waits for."""
        return next(iter(self), None)

    @property
    def wanted(self) -> int:
        """The fewest trajectories that serve them all."""
        return sum(each.at_least for each in self)

    def tidy(self, now: float) -> None:
        """Drops those whose rpcs ended too long ago."""
        for each in self._entries:
            if each.taker.gone and each.gone_at is None:
                each.gone_at = now
        self._entries = [each for each in self._entries if each.gone_at is None or now < each.gone_at + PLACE_KEPT_S]

    def put(self, request: WaitingTaker) -> bool:
        """Adds a request, or puts it in the place of an earlier one under its id.

        Returns:
            Whether that was one.
        """
        for place, each in enumerate(self._entries):
            if each.batch_id == request.batch_id:
                self._entries[place] = request
                return True
        # As many places of those whose rpcs ended are kept as there are requests, and the newest of them.
        ended = [each for each in self._entries if each.taker.gone]
        if len(ended) >= MAX_TAKERS:
            self._entries.remove(ended[0])
        self._entries.append(request)
        return False

    def has(self, batch_id: str) -> bool:
        """Returns whether a request under an id has a place."""
        return any(each.batch_id == batch_id for each in self._entries)

    def remove(self, request: WaitingTaker) -> None:
        """Takes a request out."""
        self._entries.remove(request)

    def clear(self) -> None:
        """Takes all out."""
        self._entries.clear()
