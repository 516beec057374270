"""Quota resources: units that time brings and use consumes, as token buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from callsheet.scheduler.core.model import QuotaDescription

if TYPE_CHECKING:
    from callsheet.scheduler.core.state import SchedulerState

# Added to the time at which there is enough: more than a float of seconds since the epoch rounds away.
TICK_S = 1e-6


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


def buckets_of(
    state: SchedulerState, node_id: str, quotas: Mapping[str, QuotaDescription], now: float
) -> dict[str, TokenBucket]:
    """The buckets of a node that registers.

    One that was known goes on as it was, even if its node was away. A new one is full; but after a restart it was empty
    then, as the scheduler before may just have used it up.
    """
    for key, bucket in list(state.buckets.items()):
        # A full one says no more than a new one would.
        if key[0] not in state.metered_nodes and bucket.enough_at(bucket.limits.burst) <= now:
            del state.buckets[key]
    buckets: dict[str, TokenBucket] = {}
    for name, limits in quotas.items():
        known = state.buckets.get((node_id, name))
        if known is not None:
            bucket = TokenBucket(limits, known.level, known.as_of)
        elif state.restored_at is not None:
            bucket = TokenBucket(limits, 0.0, state.restored_at)
        else:
            bucket = TokenBucket(limits, float(limits.burst), now)
        bucket.refill(now)
        buckets[name] = state.buckets[node_id, name] = bucket
    return buckets


def next_refill(state: SchedulerState) -> float | None:
    """When a ready action that lacks units of a quota could have enough; None if there is none that time helps."""
    earliest = math.inf
    waiting = state.ready.waiting_weight
    for node in state.metered_nodes.values():
        if not any(waiting.get(name) for name in node.quotas):
            continue
        for key, ready_class in state.ready.classes.items():
            needed = [(node.quotas[name], units) for name, units in key.demand.minimum().items() if name in node.quotas]
            if any(bucket.units < units for bucket, units in needed) and ready_class.head() is not None:
                earliest = min(earliest, max(bucket.enough_at(units) for bucket, units in needed))
    return earliest + TICK_S if earliest < math.inf else None
