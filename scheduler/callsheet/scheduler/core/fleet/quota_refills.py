"""The quotas of nodes that register, and the time at which enough of them is back for an action that waits."""

from __future__ import annotations

import math
from collections.abc import Mapping

from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.registration import QuotaDescription

# Added to the time at which there is enough: more than a float of seconds since the epoch rounds away.
TICK_S = 1e-6


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
