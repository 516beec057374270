"""Many deadlines, one timer: a heap of keyed points in time. Pure; `now` is a parameter, in seconds."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """At most one point in time for each key."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        # Entries are left in the heap when their key changes; the counter keeps keys from being compared.
        self._heap: list[tuple[float, int, Key]] = []
        self._counter = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, at: float) -> bool:
        """Sets (or moves) the deadline of a key, and returns whether it may now be the first of all."""
        self._due[key] = at
        self._counter += 1
        heapq.heappush(self._heap, (at, self._counter, key))
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._due):
            self._rebuild()
        return self._heap[0][2] == key

    def discard(self, key: Key) -> None:
        """Removes the deadline of a key, if it has one."""
        self._due.pop(key, None)

    def next_at(self) -> float | None:
        """Returns the first deadline, or None if there is none."""
        self._drop_superseded()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Key]:
        """Removes and returns the keys whose deadline has come, the earliest first."""
        due: list[Key] = []
        while True:
            self._drop_superseded()
            if not self._heap or self._heap[0][0] > now:
                return due
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            due.append(key)

    def _drop_superseded(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _rebuild(self) -> None:
        self._heap = [(at, number, key) for number, (key, at) in enumerate(self._due.items())]
        heapq.heapify(self._heap)
        self._counter = len(self._heap)
