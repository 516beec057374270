"""How many sandboxes of a kind are worth having ready, by when they were asked for: pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Kind = TypeVar("_Kind", bound=Hashable)

_MOST_KINDS = 256
_MOST_ARRIVALS = 512


def pool_size(arrivals: Sequence[float], now: float, *, window_s: float, memory_s: float) -> int:
    """Returns how many to keep ready: the most that were asked for within a window, among those that are remembered.

    Demand comes in groups (the siblings of a prompt begin together), so a mean rate would keep far too few. A demand
    older than `memory_s` counts for nothing, and a younger one by how much of that time is left.

    Args:
        arrivals: When one was asked for, ascending, in seconds.
        now: Not before the last of them.
        window_s: About as long as it takes to make the pool full again.
        memory_s: How long a demand is remembered.
    """
    wanted = 0.0
    first = 0
    for last, at in enumerate(arrivals):
        while arrivals[first] < at - window_s:
            first += 1
        weight = max(0.0, 1.0 - (now - at) / memory_s)
        wanted = max(wanted, weight * (last - first + 1))
    # One that is asked for again and again is worth one; one that was asked for a single time is not.
    return round(wanted) if len(arrivals) > 1 else 0


@dataclass(frozen=True, slots=True)
class Share:
    """Sandboxes of a kind to keep ready.

    Attributes:
        wanted: How many.
        memory_mib: What each holds.
        last_asked: When one was asked for last.
    """

    wanted: int
    memory_mib: int
    last_asked: float


def share_memory(kinds: Mapping[_Kind, Share], memory_mib: int) -> dict[_Kind, int]:
    """Returns how many of each kind fit into a memory: what was asked for last comes first."""
    shares = {}
    for kind, share in sorted(kinds.items(), key=lambda item: -item[1].last_asked):
        count = min(share.wanted, memory_mib // share.memory_mib)
        if count > 0:
            shares[kind] = count
            memory_mib -= count * share.memory_mib
    return shares


@dataclass(slots=True)
class DemandHistory(Generic[_Kind]):
    """When each kind was asked for; bounded, the kinds that were not asked for the longest are forgotten first."""

    _arrivals: OrderedDict[_Kind, deque[float]] = field(default_factory=OrderedDict)

    def note(self, kind: _Kind, now: float) -> None:
        """Notes that one was asked for."""
        times = self._arrivals.setdefault(kind, deque(maxlen=_MOST_ARRIVALS))
        self._arrivals.move_to_end(kind)
        times.append(now)
        while len(self._arrivals) > _MOST_KINDS:
            self._arrivals.popitem(last=False)

    def forget(self, kind: _Kind) -> None:
        """Drops a kind that cannot be made any more."""
        self._arrivals.pop(kind, None)

    def sizes(self, now: float, *, window_s: float, memory_s: float) -> dict[_Kind, tuple[int, float]]:
        """Returns how many of each kind to keep ready, with when it was asked for last."""
        return {
            kind: (pool_size(list(times), now, window_s=window_s, memory_s=memory_s), times[-1])
            for kind, times in self._arrivals.items()
        }
