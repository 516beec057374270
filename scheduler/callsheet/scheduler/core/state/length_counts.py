"""What became of trajectories by how long they took: whether training prefers short ones is told from it.

Pure. Lengths are counted in classes that double, from one second on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Fate = Literal["finished", "trained", "stale", "evicted"]
# About twelve days, and all that is longer.
MAX_CLASS = 20
QUANTILES = 4


class LengthShare(NamedTuple):
    """A quantile of trajectories by their length in seconds, and what part of them was trained on."""

    up_to_s: float
    trajectories: int
    trained: float


@dataclass(slots=True)
class LengthCounts:
    """Counts by fate and by class of length; class n ends at 2 ** n seconds."""

    counts: dict[Fate, dict[int, int]] = field(default_factory=dict)

    def note(self, fate: Fate, seconds: float) -> None:
        """Counts one trajectory."""
        counts = self.counts.setdefault(fate, {})
        length = class_of(seconds)
        counts[length] = counts.get(length, 0) + 1

    def total(self, fate: Fate) -> int:
        """How many had this fate."""
        return sum(self.counts.get(fate, {}).values())

    def shares(self) -> list[LengthShare]:
        """The share trained on of those that are over, by quantile of length: quarters as good as classes allow.

        One that was evicted counts with the time that it had lived.
        """
        over = {fate: self.counts.get(fate, {}) for fate in ("trained", "stale", "evicted")}
        classes = sorted({each for counts in over.values() for each in counts})
        sizes = {each: sum(counts.get(each, 0) for counts in over.values()) for each in classes}
        total, shares, count, trained = sum(sizes.values()), list[LengthShare](), 0, 0
        seen = 0
        for each in classes:
            count += sizes[each]
            seen += sizes[each]
            trained += over["trained"].get(each, 0)
            if seen * QUANTILES >= total * (len(shares) + 1) or each == classes[-1]:
                shares.append(LengthShare(2.0**each, count, trained / count))
                count = trained = 0
        return shares


def class_of(seconds: float) -> int:
    """The class of a length."""
    return min(max(math.ceil(math.log2(seconds)), 0), MAX_CLASS) if seconds > 0.0 else 0
