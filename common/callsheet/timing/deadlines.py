"""Deadlines by key, in seconds: the earliest first, replaced and dropped without searching. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK = 8
# Each has a part of the keys, so that a heap that is built anew is small: of 100,000 keys that takes some milliseconds.
_SHARDS = 16


class Deadlines(Generic[K]):
    """A priority queue with one time per key.

    Replaced and dropped entries stay in a heap until they come up or until they outnumber the live ones; then the
    heap is built anew, so memory stays proportional to the live keys.
    """

    def __init__(self) -> None:
        self._shards: list[_Shard[K]] = [_Shard() for _ in range(_SHARDS)]
        self._pushes = 0

    def __len__(self) -> int:
        return sum(len(shard.live) for shard in self._shards)

    def set(self, key: K, time: float) -> bool:
        """Sets or replaces a key's deadline; returns whether it may now be the earliest of all."""
        shard = self._shard_of(key)
        self._pushes += 1
        shard.live[key] = entry = (time, self._pushes, key)
        heapq.heappush(shard.heap, entry)
        shard.tidy()
        return shard.heap[0][2] == key

    def get(self, key: K) -> float | None:
        """A key's deadline, if it has one."""
        entry = self._shard_of(key).live.get(key)
        return entry[0] if entry is not None else None

    def drop(self, key: K) -> None:
        """Removes a key's deadline, if it has one."""
        shard = self._shard_of(key)
        if shard.live.pop(key, None) is not None:
            shard.tidy()

    def next(self) -> float | None:
        """The earliest deadline."""
        first = self._first()
        return first[0] if first is not None else None

    def pop_due(self, now: float, most: int | None = None) -> list[K]:
        """Removes and returns keys whose time has come, earliest first; at most so many."""
        due: list[K] = []
        while len(due) != most and (first := self._first()) is not None and first[0] <= now:
            due.append(first[2])
            # Its entry in the heap is skipped from now on.
            del self._shard_of(first[2]).live[first[2]]
        return due

    def _first(self) -> tuple[float, int, K] | None:
        found = [first for shard in self._shards if (first := shard.first()) is not None]
        return min(found, key=_when, default=None)

    def _shard_of(self, key: K) -> _Shard[K]:
        return self._shards[hash(key) % _SHARDS]


class _Shard(Generic[K]):
    """A part of the keys. The number in an entry keeps keys from being compared."""

    def __init__(self) -> None:
        self.live: dict[K, tuple[float, int, K]] = {}
        self.heap: list[tuple[float, int, K]] = []

    def first(self) -> tuple[float, int, K] | None:
        """The earliest entry."""
        heap = self.heap
        while heap and self.live.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def tidy(self) -> None:
        """Builds the heap anew once most of it is of no use."""
        if len(self.heap) > 2 * len(self.live) + _SLACK:
            self.heap = list(self.live.values())
            heapq.heapify(self.heap)


def _when(entry: tuple[float, int, object]) -> tuple[float, int]:
    return entry[:2]
