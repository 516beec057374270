"""ARL-Tangram's choice of candidates and their cores at one node: greedy eviction with sizes by dynamic programming.

Source: ARL-Tangram (arXiv 2603.13019), elastic scheduling algorithm. The objective is the sum of completion times:
exact for the candidates, and for those behind them an estimate by a heap of the times at which cores come back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Profile:
    """What offline profiling tells of a command.

    Attributes:
        duration_s: Mean on one core of its class.
        parallel_fraction: Amdahl's fraction; its E(m) is `speed_up(m) / m`.
        max_width: Most cores it can use.
    """

    duration_s: float
    parallel_fraction: float = 0.0
    max_width: int = 1

    def on(self, width: int) -> float:
        """Expected seconds on that many cores."""
        return self.duration_s * ((1.0 - self.parallel_fraction) + self.parallel_fraction / width)


@dataclass(frozen=True, slots=True)
class Release:
    """Cores that come back: in so many seconds, so many."""

    in_s: float
    cores: int


def choose_widths(
    candidates: Sequence[Profile], behind: Sequence[Profile], releases: Sequence[Release], free: int, depth: int
) -> list[int]:
    """Cores for each candidate that starts now; those left out at the end were evicted.

    Args:
        candidates: First come; no more than there are free cores, so each fits with one.
        behind: The next in line, who do not fit.
        releases: Of running commands.
        free: Cores that are free.
        depth: Most evictions tried.

    Returns:
        Widths of the first candidates; at least one where there are any.
    """
    sizes = _Sizes(candidates, free)
    waiting = [*candidates, *behind]
    kept = len(candidates)
    widths = sizes.widths(kept)
    if kept < 2:
        return widths
    best = _total_s(waiting, widths, releases)
    for _ in range(min(depth, kept - 1)):
        fewer = sizes.widths(kept - 1)
        total_s = _total_s(waiting, fewer, releases)
        if total_s >= best:
            break
        kept, widths, best = kept - 1, fewer, total_s
    return widths


class _Sizes:
    """Best sizes of the first n candidates for every n: one table, as each row needs the one before alone."""

    def __init__(self, candidates: Sequence[Profile], free: int) -> None:
        self._free = free
        self._chosen: list[NDArray[np.int64]] = []
        least = np.zeros(free + 1)  # least[j]: least sum of durations on j cores or fewer
        for candidate in candidates:
            least, chosen = _add(least, candidate)
            self._chosen.append(chosen)

    def widths(self, count: int) -> list[int]:
        """Sizes of the first `count` candidates on all free cores."""
        left = self._free
        widths = []
        for chosen in reversed(self._chosen[:count]):
            widths.append(int(chosen[left]))
            left -= widths[-1]
        return widths[::-1]


def _add(least: NDArray[np.float64], candidate: Profile) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One more row of the table: the least sums with this candidate too, and the width it then has."""
    cores = len(least) - 1
    options = np.full((min(candidate.max_width, cores), len(least)), np.inf)
    for index in range(len(options)):
        width = index + 1
        options[index, width:] = least[: cores + 1 - width] + candidate.on(width)
    chosen = options.argmin(axis=0)
    return options[chosen, np.arange(len(least))], chosen + 1


def _total_s(waiting: Sequence[Profile], widths: Sequence[int], releases: Sequence[Release]) -> float:
    """Sum of completion times from now, if the first start with these widths and the others follow on one core each."""
    heap = [(release.in_s, release.cores) for release in releases]
    total_s = 0.0
    for profile, width in zip(waiting, widths, strict=False):
        ends_in_s = profile.on(width)
        total_s += ends_in_s
        heap.append((ends_in_s, width))
    heapq.heapify(heap)
    for profile in waiting[len(widths) :]:
        starts_in_s, cores = heap[0]
        ends_in_s = starts_in_s + profile.duration_s
        total_s += ends_in_s
        heapq.heapreplace(heap, (ends_in_s, 1))
        if cores > 1:
            heapq.heappush(heap, (starts_in_s, cores - 1))
    return total_s
