"""Queues of commands by rank. Entries that went stale stay in the heaps until they come to the top."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from callsheet.managers.sandbox.node_sharing.member import Member
from callsheet.managers.sandbox.node_sharing.rank import CLAIM_LEVEL

_Entry = tuple[float, float, int, Member]


class BackgroundQueue:
    """Commands in the background; the one of lowest rank first.

    Ranks fall with time, those of one rate of ageing alike, so their order among each other never changes: one heap for
    each rate, and the first of all is the lowest of a few.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        """Args: numbers: Rising from 1, shared by all queues that a command may be in."""
        self._heaps: dict[float, list[_Entry]] = {}
        self._numbers = numbers
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def put(self, member: Member) -> None:
        """Adds a command."""
        self._live += 1
        self._push(member)

    def reorder(self, member: Member) -> None:
        """Follows a change of a command's rank."""
        self._push(member)

    def remove(self, member: Member) -> None:
        """Takes a command out."""
        self._live -= 1
        member.entry = 0

    def first(self, now: float) -> Member | None:
        """Returns the command of lowest rank."""
        best: Member | None = None
        best_rank = float("inf")
        for ageing, heap in self._heaps.items():
            while heap and heap[0][3].entry != heap[0][2]:
                heapq.heappop(heap)
            if heap and heap[0][0] - ageing * now < best_rank:
                best_rank, best = heap[0][0] - ageing * now, heap[0][3]
        return best

    def _push(self, member: Member) -> None:
        member.entry = number = next(self._numbers)
        heap = self._heaps.setdefault(member.ageing, [])
        heapq.heappush(heap, (member.background_rank_at_zero(), 0.0, number, member))
        _compact(heap, self._live)


class ForegroundQueue:
    """Commands in the foreground that may lose their place; the one of highest level, then highest rank, first."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """Args: numbers: Rising from 1, shared by all queues that a command may be in."""
        self._heap: list[_Entry] = []
        self._numbers = numbers
        self._live = 0
        self._use = 0.0
        self._claimed_use = 0.0

    def use_behind(self, level: int) -> float:
        """Returns the cores used by commands of higher levels than this one, which is a claim's or a new command's."""
        return self._use - self._claimed_use if level >= CLAIM_LEVEL else self._use

    def put(self, member: Member, rank_s: float) -> None:
        """Adds a command."""
        member.entry = number = next(self._numbers)
        self._live += 1
        self._use += member.use
        if member.level == CLAIM_LEVEL:
            self._claimed_use += member.use
        heapq.heappush(self._heap, (-member.level, -rank_s, number, member))
        _compact(self._heap, self._live)

    def remove(self, member: Member) -> None:
        """Takes a command out."""
        member.entry = 0
        self._live -= 1
        self._use = self._use - member.use if self._live else 0.0
        if member.level == CLAIM_LEVEL:
            self._claimed_use -= member.use
        if not self._live:
            self._claimed_use = 0.0

    def first(self) -> Member | None:
        """Returns the command to demote first."""
        heap = self._heap
        while heap and heap[0][3].entry != heap[0][2]:
            heapq.heappop(heap)
        return heap[0][3] if heap else None


def _compact(heap: list[_Entry], live: int) -> None:
    """Drops stale entries once they are the most."""
    if len(heap) > 64 and len(heap) > 4 * live:
        heap[:] = [entry for entry in heap if entry[3].entry == entry[2]]
        heapq.heapify(heap)
