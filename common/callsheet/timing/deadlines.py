"""Deadlines by key, in seconds: the earliest first, replaced and dropped without searching. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[K]):
    """A priority queue with one time per key.

    Replaced and dropped entries stay in the heap until they come up or until they outnumber the live ones; then the
    heap is built anew, so memory stays proportional to the live keys.
    """

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        # The number keeps keys from being compared.
        self._heap: list[tuple[float, int, K]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: K, time: float) -> bool:
        """Sets or replaces a key's deadline; returns whether it may now be the earliest of all."""
        self._times[key] = time
        self._pushes += 1
        heapq.heappush(self._heap, (time, self._pushes, key))
        self._tidy()
        return self._heap[0][2] == key

    def get(self, key: K) -> float | None:
        """A key's deadline, if it has one."""
        return self._times.get(key)

    def drop(self, key: K) -> None:
        """Removes a key's deadline, if it has one."""
        if self._times.pop(key, None) is not None:
            self._tidy()

    def next(self) -> float | None:
        """The earliest deadline."""
        heap = self._heap
        while heap and self._times.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float, most: int | None = None) -> list[K]:
        """Removes and returns keys whose time has come, earliest first; at most so many."""
        due: list[K] = []
        while len(due) != most and (time := self.next()) is not None and time <= now:
            key = heapq.heappop(self._heap)[2]
            del self._times[key]
            due.append(key)
        return due

    def _tidy(self) -> None:
        if len(self._heap) <= 2 * len(self._times) + _SLACK:
            return
        self._heap = [(time, order, key) for order, (key, time) in enumerate(self._times.items())]
        heapq.heapify(self._heap)
