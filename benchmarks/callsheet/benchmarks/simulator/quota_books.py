"""What is left of the quota of an outside API: calls, and tokens where these are limited."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from callsheet.benchmarks.simulator.scenario import Quota
from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.words.registration import QuotaDescription

CALLS: Final = "calls"
TOKENS: Final = "tokens"
ROUNDING_S: Final = 1e-6
"""A wait shorter than this is none: refills are sums of fractions."""


def quotas_of(quota: Quota) -> dict[str, QuotaDescription]:
    """What an outside API lets through in a time."""
    quotas = {}
    if quota.per_second < inf:
        quotas[CALLS] = QuotaDescription(quota.per_second, max(int(quota.burst), 1))
    if quota.tokens_per_minute < inf:
        quotas[TOKENS] = QuotaDescription(quota.tokens_per_minute / 60.0, max(int(quota.tokens_per_minute), 1))
    return quotas


class QuotaBooks:
    """Counts what calls take and time brings back. Who wants more than is kept at most needs and takes all of it."""

    def __init__(self, quota: Quota) -> None:
        self._buckets = {name: TokenBucket(limits, limits.burst, 0.0) for name, limits in quotas_of(quota).items()}

    def wait_s(self, tokens: int, now: float) -> float:
        """Seconds until a call with so many tokens has what it needs."""
        longest_s = 0.0
        for bucket, units in self._wanted(tokens):
            bucket.refill(now)
            longest_s = max(longest_s, bucket.enough_at(units) - now)
        return longest_s

    def take(self, tokens: int) -> None:
        """Takes what a call with so many tokens needs, of what `wait_s` found last."""
        for bucket, units in self._wanted(tokens):
            bucket.consume(units)

    def _wanted(self, tokens: int) -> Iterator[tuple[TokenBucket, int]]:
        for name, bucket in self._buckets.items():
            yield bucket, min(1 if name == CALLS else tokens, bucket.limits.burst)
