"""Quota resources as token buckets: time brings their units, and use consumes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from callsheet.scheduler.core.words.registration import QuotaDescription


@dataclass(slots=True)
class TokenBucket:
    """Units that come at a steady rate and are kept up to a burst (the token bucket of traffic shaping).

    In any `t` seconds at most `burst + t * per_second` units are consumed.

    Attributes:
        level: Units there were at `as_of` (seconds since the epoch).
    """

    limits: QuotaDescription
    level: float
    as_of: float

    @property
    def units(self) -> int:
        """Whole units there are, as of the last refill."""
        return math.floor(self.level)

    def refill(self, now: float) -> None:
        """Adds what has come since the last refill."""
        came = max(now - self.as_of, 0.0) * self.limits.per_second
        self.level, self.as_of = min(self.level + came, float(self.limits.burst)), now

    def consume(self, units: int) -> None:
        """Takes units that are there, for good."""
        self.level -= units

    def enough_at(self, units: int) -> float:
        """When there will be so many units if none is consumed; infinite if never."""
        if units > self.limits.burst:
            return math.inf
        return self.as_of + max(units - self.level, 0.0) / self.limits.per_second
