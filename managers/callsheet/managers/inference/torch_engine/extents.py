"""Allocates contiguous extents of a fixed space, first fit. Pure bookkeeping."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Places `start` to `start + length - 1`."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The place after the last one."""
        return self.start + self.length


class ExtentAllocator:
    """Hands out extents of `capacity` places in multiples of `alignment`."""

    def __init__(self, capacity: int, alignment: int = 1) -> None:
        """Starts with everything free.

        Raises:
            ValueError: `alignment` is below 1, or `capacity` is not a multiple of it that is above 0.
        """
        if alignment < 1 or capacity < 1 or capacity % alignment:
            raise ValueError(f"capacity is {capacity}; it must be a multiple of alignment ({alignment}) above 0")
        self.capacity = capacity
        self._alignment = alignment
        self._free = [Extent(0, capacity)]

    @property
    def used(self) -> int:
        """Places handed out."""
        return self.capacity - sum(hole.length for hole in self._free)

    def fits(self, length: int) -> bool:
        """Whether `allocate` would find room now."""
        return any(hole.length >= self._rounded(length) for hole in self._free)

    def allocate(self, length: int) -> Extent | None:
        """Returns an extent of at least `length` places, or None while no hole is large enough.

        Raises:
            ValueError: `length` is below 1.
        """
        if length < 1:
            raise ValueError(f"length is {length}; it must be at least 1")
        rounded = self._rounded(length)
        for index, hole in enumerate(self._free):
            if hole.length >= rounded:
                rest = Extent(hole.start + rounded, hole.length - rounded)
                self._free[index : index + 1] = [rest] if rest.length else []
                return Extent(hole.start, rounded)
        return None

    def release(self, taken: Extent) -> None:
        """Gives an extent back and joins it with its free neighbours.

        Raises:
            ValueError: It is outside the space, or part of it is free already.
        """
        index = bisect_left(self._free, taken)
        before = self._free[index - 1] if index else Extent(0, 0)
        after = self._free[index] if index < len(self._free) else Extent(self.capacity, 0)
        if taken.length < 1 or taken.start < before.end or taken.end > after.start:
            raise ValueError(f"extent {taken} was not handed out")
        joined = [hole for hole in (before, taken, after) if hole.length]
        merged: list[Extent] = []
        for hole in joined:
            if merged and merged[-1].end == hole.start:
                merged[-1] = Extent(merged[-1].start, merged[-1].length + hole.length)
            else:
                merged.append(hole)
        self._free[max(index - 1, 0) : index + 1] = merged

    def _rounded(self, length: int) -> int:
        return -(-length // self._alignment) * self._alignment
