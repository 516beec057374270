"""How fast a key may be spent, and what has been: the truth about quotas, in memory for one manager.

See `redis_quotas` for several. Buckets never pass what a provider allows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import override

TRANSIT_S = 0.25
"""How much longer one request may be under way than another: what is sent evenly may arrive so much closer together."""
_MINUTE_S = 60.0
# Of what a minute allows, where the provider tells no burst. What is kept for a burst the steady rate lacks.
_BURST_SHARE = 0.03
_EXACTLY = 1e-9

ASK_AGAIN_S = 0.02
"""When to ask again for one of the calls at once: nothing tells when another manager's ends."""
_ENOUGH = 1e-9


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_second` units come by time, at most `burst` are kept."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class KeyQuota:
    """Quota of a key, or of a key at one model.

    Attributes:
        name: "KEY" or "KEY/MODEL".
        concurrency: Calls at once; 0 for no limit.
        requests: Calls by time; None for no limit.
        tokens: Tokens by time; None for no limit.
    """

    name: str
    concurrency: int = 0
    requests: Rate | None = None
    tokens: Rate | None = None


@dataclass(frozen=True, slots=True)
class ToldLimits:
    """Limits that an answer of a provider reports.

    Attributes:
        blocked_s: Seconds in which it takes no call.
        requests: Calls that are left; None if it does not say.
        tokens: Tokens that are left; None if it does not say.
    """

    blocked_s: float = 0.0
    requests: int | None = None
    tokens: int | None = None


NOTHING_TOLD = ToldLimits()


def paced(per_minute: float, burst: int, largest: int) -> Rate:
    """Returns the bucket for a limit of a provider.

    Without a burst the provider may count any 60 seconds: no such time then sees more than `per_minute`. With one the
    provider is a token bucket, too; what may arrive closer together than it was sent is taken off its burst.

    Args:
        per_minute: Units that a minute allows.
        burst: Units that the provider keeps for a burst; 0 if that is unknown.
        largest: Units of the largest call.

    Raises:
        ValueError: The largest call is more than the limit.
    """
    if largest > (burst or per_minute):
        raise ValueError(f"{burst or per_minute:g}: must be at least {largest}, what one call may take")
    if burst:
        per_second = per_minute / _MINUTE_S
        return Rate(per_second, max(largest, int(burst - per_second * TRANSIT_S)))
    kept = max(largest, int(per_minute * _BURST_SHARE))
    return Rate((per_minute + 1 - kept) / (_MINUTE_S + TRANSIT_S) * (1 - _EXACTLY), kept)


class QuotaStore(ABC):
    """Spending on quotas, and the limits that providers reported."""

    @abstractmethod
    async def take(self, quota: KeyQuota, holder: str, tokens: int, hold_s: float) -> float:
        """Takes a call and its tokens, or nothing; a holder that has them already takes no more, and is held anew.

        Args:
            quota: Of which.
            holder: Who counts as one of the calls at once, until `settle`.
            tokens: Tokens that the call is expected to take.
            hold_s: After so many seconds the holder is taken for dead.

        Returns:
            0 if they were taken, else the seconds after which asking again may help.

        Raises:
            ToolFailedError: The truth cannot be asked.
        """

    @abstractmethod
    async def settle(self, quota: KeyQuota, holder: str, further_tokens: int, told: ToldLimits) -> None:
        """Notes that a call is over; tokens change only with the first note for a holder.

        Args:
            quota: Of which.
            holder: Whose.
            further_tokens: Tokens that it took beyond the expected ones; below 0 gives some back. Nothing changes for
                a holder that took nothing, or was taken for dead.
            told: What its answer said.

        Raises:
            ToolFailedError: The truth cannot be asked.
        """

    async def close(self) -> None:
        """Ends its connections."""


@dataclass(slots=True)
class _Spending:
    as_of: float
    requests: float = 0.0
    tokens: float = 0.0
    blocked_until: float = 0.0
    holders: dict[str, float] = field(default_factory=dict)

    def refill(self, quota: KeyQuota, now: float) -> None:
        self.requests = _refilled(self.requests, quota.requests, now - self.as_of)
        self.tokens = _refilled(self.tokens, quota.tokens, now - self.as_of)
        self.as_of = now
        self.holders = {holder: until for holder, until in self.holders.items() if until > now}


class MemoryQuotas(QuotaStore):
    """The truth of one manager. Buckets begin empty: a process before it may just have spent what they keep."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spending: dict[str, _Spending] = {}

    @override
    async def take(self, quota: KeyQuota, holder: str, tokens: int, hold_s: float) -> float:
        now, spent = self._now(quota)
        if holder not in spent.holders:
            wait_s = max(
                spent.blocked_until - now,
                _lacking_s(1, spent.requests, quota.requests),
                _lacking_s(tokens, spent.tokens, quota.tokens),
                ASK_AGAIN_S if 0 < quota.concurrency <= len(spent.holders) else 0.0,
            )
            if wait_s > 0:
                return wait_s
            spent.requests -= 1
            spent.tokens -= tokens
        spent.holders[holder] = now + hold_s
        return 0.0

    @override
    async def settle(self, quota: KeyQuota, holder: str, further_tokens: int, told: ToldLimits) -> None:
        now, spent = self._now(quota)
        if spent.holders.pop(holder, None) is not None:
            spent.tokens -= further_tokens
        spent.blocked_until = max(spent.blocked_until, now + told.blocked_s)
        if told.requests is not None:
            spent.requests = min(spent.requests, told.requests)
        if told.tokens is not None:
            spent.tokens = min(spent.tokens, told.tokens)

    def _now(self, quota: KeyQuota) -> tuple[float, _Spending]:
        now = self._clock()
        spent = self._spending.setdefault(quota.name, _Spending(now))
        spent.refill(quota, now)
        return now, spent


def _refilled(level: float, rate: Rate | None, passed_s: float) -> float:
    return 0.0 if rate is None else min(level + passed_s * rate.per_second, float(rate.burst))


def _lacking_s(units: int, level: float, rate: Rate | None) -> float:
    if rate is None or level >= units - _ENOUGH:
        return 0.0
    return (units - level) / rate.per_second
