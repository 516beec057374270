"""Queues of commands by level. Entries that went stale stay in the heaps until they come to the top."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from callsheet.managers.sandbox.node_sharing.member import RunningCommand

_Entry = tuple[int, float, int, RunningCommand]


class BackgroundQueue:
    """Commands in the background; the first to be promoted first: of the lowest level the one that came first."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """Args: numbers: Rising from 1, shared by all queues that a command may be in."""
        self._heap: list[_Entry] = []
        self._numbers = numbers
        self._live = 0

    def put(self, member: RunningCommand) -> None:
        """Adds a command."""
        self._live += 1
        self.reorder(member)

    def reorder(self, member: RunningCommand) -> None:
        """Follows a change of a command's level."""
        member.entry = number = next(self._numbers)
        heapq.heappush(self._heap, (*member.order, number, member))
        _compact(self._heap, self._live)

    def remove(self, member: RunningCommand) -> None:
        """Takes a command out."""
        self._live -= 1
        member.entry = 0

    def first(self) -> RunningCommand | None:
        """Returns the command to promote first."""
        return _first(self._heap)


class ForegroundQueue:
    """Commands in the foreground that may lose their place; of the highest level the one that came last first."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """Args: numbers: Rising from 1, shared by all queues that a command may be in."""
        self._heap: list[_Entry] = []
        self._numbers = numbers
        self._live: dict[int, int] = {}
        self._use: dict[int, float] = {}

    def use_behind(self, level: int) -> float:
        """Returns the cores used by commands of higher levels than this one."""
        return sum(use for other, use in self._use.items() if other > level)

    def put(self, member: RunningCommand) -> None:
        """Adds a command."""
        level, came = member.order
        member.entry = number = next(self._numbers)
        self._live[level] = self._live.get(level, 0) + 1
        self._use[level] = self._use.get(level, 0.0) + member.use
        heapq.heappush(self._heap, (-level, -came, number, member))
        _compact(self._heap, sum(self._live.values()))

    def remove(self, member: RunningCommand) -> None:
        """Takes a command out, with the level and the use that it was put in with."""
        member.entry = 0
        self._live[member.level] -= 1
        self._use[member.level] -= member.use
        if not self._live[member.level]:
            del self._live[member.level], self._use[member.level]

    def first(self) -> RunningCommand | None:
        """Returns the command to demote first."""
        return _first(self._heap)


class ForegroundClaims:
    """Commands with a claim to the foreground, and the cores that they use together."""

    def __init__(self) -> None:
        self._uses: dict[RunningCommand, float] = {}
        self._overdue: dict[RunningCommand, None] = {}
        self.use = 0.0

    def update(self, member: RunningCommand) -> None:
        """Follows a change of a command's lane, level or use."""
        self.use -= self._uses.pop(member, 0.0)
        if member.has_claim:
            self._uses[member] = member.use
            self.use += member.use
        elif not self._uses:
            self.use = 0.0
        if member.overdue:
            self._overdue[member] = None
        else:
            self._overdue.pop(member, None)

    def overdue(self) -> list[RunningCommand]:
        """Returns the overdue commands in the background, those that have been overdue for longest first."""
        return list(self._overdue)


def _first(heap: list[_Entry]) -> RunningCommand | None:
    while heap and heap[0][3].entry != heap[0][2]:
        heapq.heappop(heap)
    return heap[0][3] if heap else None


def _compact(heap: list[_Entry], live: int) -> None:
    """Drops stale entries once they are the most."""
    if len(heap) > 64 and len(heap) > 4 * live:
        heap[:] = [entry for entry in heap if entry[3].entry == entry[2]]
        heapq.heapify(heap)
