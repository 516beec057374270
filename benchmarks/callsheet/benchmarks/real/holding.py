"""How many cores are held over time, where commands may be given more together than there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Cores that an action, or a trajectory, has from one time to another; in seconds of one clock."""

    start: float
    end: float
    cores: int


def held_core_s(spans: Iterable[Span], cores: int) -> float:
    """Core-seconds held: at every time the widths of what runs, and never more than the cores there are.

    The simulator counts a node's cores in the same way.
    """
    changes = sorted(change for start, end, width in spans if end > start for change in ((start, width), (end, -width)))
    total, running, since = 0.0, 0, 0.0
    for at, change in changes:
        total += min(running, cores) * (at - since)
        running += change
        since = at
    return total
