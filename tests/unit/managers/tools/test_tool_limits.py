"""How fast a key is spent: no provider sees more than it allows, and little of that is left."""

from __future__ import annotations

import heapq
import random

import pytest
from callsheet.managers.tools.quotas import KeyQuota, MemoryQuotas, Rate, ToldLimits, paced

from tests.support.limited_provider import Limit, SlidingWindow, StrictBucket

MINUTE_S = 60.0
TRANSIT_S = 0.25


@pytest.mark.parametrize(
    ("per_minute", "burst", "largest", "expected"),
    [
        (60.0, 10, 1, Rate(1.0, 9)),
        (6.0, 1, 1, Rate(0.1, 1)),
        (600.0, 100, 1, Rate(10.0, 97)),
        (90_000.0, 4_000, 4_000, Rate(1500.0, 4_000)),
    ],
)
def test_a_provider_that_tells_its_burst_is_met_with_one_a_little_smaller(
    per_minute: float, burst: int, largest: int, expected: Rate
) -> None:
    assert paced(per_minute, burst, largest) == expected


@pytest.mark.parametrize(("per_minute", "burst", "largest"), [(60.0, 0, 61), (60.0, 5, 6), (0.5, 0, 1)])
def test_a_call_larger_than_the_limit_is_refused(per_minute: float, burst: int, largest: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        paced(per_minute, burst, largest)


async def used_of(limit: Limit, rate: Rate, units: int, minutes: int, seed: int) -> tuple[int, int]:
    """Spends as fast as the store allows, with transits of any length; returns accepted units after the first minute,
    and refusals."""
    now, end = 0.0, minutes * MINUTE_S
    store = MemoryQuotas(lambda: now)
    by_tokens = units > 1
    quota = KeyQuota("key", requests=None if by_tokens else rate, tokens=rate if by_tokens else None)
    rng = random.Random(seed)
    arrivals: list[float] = []
    while now < end:
        wait_s = await store.take(quota, "me", units, 1e6)
        if wait_s:
            now += wait_s
        else:
            heapq.heappush(arrivals, now + rng.random() ** 3 * TRANSIT_S)
            await store.settle(quota, "me", 0, ToldLimits())
    accepted = refused = 0
    while arrivals and arrivals[0] < end:
        at = heapq.heappop(arrivals)
        if limit.admit(at, units):
            refused += 1
        elif at >= MINUTE_S:
            accepted += units
    return accepted, refused


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_minute", [1, 2, 7, 20, 60, 500, 3000])
async def test_no_minute_sees_more_than_it_allows_and_little_is_left(per_minute: int, seed: int) -> None:
    minutes = 60 if per_minute < 60 else 4
    accepted, refused = await used_of(SlidingWindow(per_minute), paced(per_minute, 0, 1), 1, minutes, seed)
    assert refused == 0
    assert accepted >= 0.95 * per_minute * (minutes - 1)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("per_minute", "burst"), [(60, 2), (60, 60), (600, 20), (3000, 50), (30, 1)])
async def test_no_bucket_is_drained_below_nothing_and_little_is_left(per_minute: int, burst: int, seed: int) -> None:
    limit = StrictBucket(per_minute / 60, burst)
    accepted, refused = await used_of(limit, paced(per_minute, burst, 1), 1, 10, seed)
    # Where one is all that is kept, the spacing of arrivals is up to the network; the provider's word is then obeyed.
    assert refused == 0 or burst == 1
    assert accepted >= 0.95 * per_minute * 9 or burst == 1


@pytest.mark.anyio
@pytest.mark.parametrize(("per_minute", "units"), [(90_000, 1_000), (10_000, 100), (30_000, 700)])
async def test_tokens_are_paced_alike(per_minute: int, units: int) -> None:
    accepted, refused = await used_of(SlidingWindow(per_minute), paced(per_minute, 0, units), units, 6, 0)
    assert refused == 0
    assert accepted >= 0.95 * per_minute * 5


@pytest.mark.anyio
@pytest.mark.parametrize(("per_minute", "burst"), [(600, 20), (3000, 50), (60, 60), (6000, 300)])
async def test_a_burst_that_was_long_under_way_and_what_follows_it_fit(per_minute: int, burst: int) -> None:
    """The provider's bucket was full until the burst arrived: what came meanwhile was lost to it."""
    now, limit = 0.0, StrictBucket(per_minute / 60, burst)
    store, quota = MemoryQuotas(lambda: now), KeyQuota("key", requests=paced(per_minute, burst, 1))
    await store.take(quota, "me", 0, 1e6)
    now, arrivals = 1000.0, list[float]()
    began = now
    while len(arrivals) < 3 * burst:
        wait_s = await store.take(quota, f"{len(arrivals)}", 0, 1e6)
        now += wait_s
        if not wait_s:
            arrivals.append(now + (TRANSIT_S if now == began else 0.0))
    assert [limit.admit(at, 1) for at in sorted(arrivals)] == [0.0] * len(arrivals)
