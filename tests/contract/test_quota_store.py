"""Both places of the truth about quotas: the memory of one manager, and Redis for several."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest
from callsheet.managers.tools.quotas import NOTHING_TOLD, KeyQuota, MemoryQuotas, QuotaStore, Rate, ToldLimits
from callsheet.managers.tools.redis_quotas import RedisQuotas

pytestmark = pytest.mark.anyio
SLOW = Rate(1e-6, 5)
FAST = Rate(200.0, 1)
HOLD_S = 60.0
_DEADLINE_S = 20.0


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    """An empty store."""
    if request.param == "memory":
        yield MemoryQuotas()
        return
    found = RedisQuotas(request.getfixturevalue("redis_url"), uuid.uuid4().hex)
    yield found
    await found.close()


async def fill(store: QuotaStore, quota: KeyQuota, tokens: int = 0) -> None:
    """Waits until one call could be made, and gives it back."""
    await taken(store, quota, "filler", tokens)
    await store.settle(quota, "filler", -tokens, NOTHING_TOLD)


async def taken(store: QuotaStore, quota: KeyQuota, holder: str, tokens: int = 0) -> None:
    """Takes a call as soon as it may be made."""
    with anyio.fail_after(_DEADLINE_S):
        while True:
            wait_s = await store.take(quota, holder, tokens, HOLD_S)
            if not wait_s:
                return
            await anyio.sleep(wait_s)


async def test_without_limits_everything_may_be_taken(store: QuotaStore) -> None:
    assert [await store.take(KeyQuota("free"), f"{each}", 10**6, HOLD_S) for each in range(50)] == [0.0] * 50


async def test_what_was_taken_is_gone_until_time_brings_it(store: QuotaStore) -> None:
    quota = KeyQuota("key", requests=Rate(0.01, 1))
    waits = [await store.take(quota, holder, 0, HOLD_S) for holder in "ab"]
    assert 0.0 < waits[-1] <= 100.0


async def test_the_wait_that_is_told_is_enough(store: QuotaStore) -> None:
    quota = KeyQuota("key", requests=FAST, tokens=Rate(1000.0, 100))
    for number in range(10):
        await taken(store, quota, f"{number}", 60)


async def test_no_more_calls_at_once_than_allowed(store: QuotaStore) -> None:
    quota = KeyQuota("key", concurrency=2)
    assert [await store.take(quota, name, 0, HOLD_S) for name in "ab"] == [0.0, 0.0]
    assert await store.take(quota, "c", 0, HOLD_S) > 0.0
    await store.settle(quota, "a", 0, NOTHING_TOLD)
    assert await store.take(quota, "c", 0, HOLD_S) == 0.0


async def test_a_holder_that_never_settles_is_taken_for_dead(store: QuotaStore) -> None:
    quota = KeyQuota("key", concurrency=1)
    assert [await store.take(quota, "dies", 0, each) for each in (HOLD_S, 0.05)] == [0.0] * 2, "it is held anew"
    await taken(store, quota, "lives")


async def test_a_take_that_is_repeated_takes_nothing_more(store: QuotaStore) -> None:
    await taken(store, KeyQuota("key", 1, FAST, Rate(1e4, 100)), "a", 100)
    slow = KeyQuota("key", 1, Rate(0.01, 1), Rate(1.0, 100))
    assert [await store.take(slow, "a", 100, HOLD_S) for _ in range(3)] == [0.0] * 3
    assert all(
        [
            0.0 < await store.take(each, "b", 100, HOLD_S) <= 100.0
            for each in (replace(slow, concurrency=0, tokens=None), replace(slow, concurrency=0, requests=None))
        ]
    )


@pytest.mark.parametrize(("further", "left"), [(-300, 400), (50, 50)])
async def test_a_settlement_that_is_repeated_changes_no_tokens(store: QuotaStore, further: int, left: int) -> None:
    await fill(store, KeyQuota("key", tokens=Rate(1e6, 1000)), 1000)
    quota = KeyQuota("key", tokens=Rate(1e-3, 1000))
    assert [await store.take(quota, name, tokens, HOLD_S) for name, tokens in (("a", 600), ("b", 300))] == [0.0, 0.0]
    for holder in ("b", "b", "b", "never granted"):
        await store.settle(quota, holder, further, NOTHING_TOLD)
    assert [not await store.take(quota, "c", tokens, HOLD_S) for tokens in (left + 1, left)] == [False, True]


async def test_a_provider_that_asks_for_a_break_gets_it_from_all(store: QuotaStore) -> None:
    quota = KeyQuota("key", concurrency=5)
    await store.take(quota, "a", 0, HOLD_S)
    await store.settle(quota, "a", 0, ToldLimits(blocked_s=30.0))
    assert 29.0 < await store.take(quota, "b", 0, HOLD_S) <= 30.0
    await store.settle(quota, "c", 0, ToldLimits(blocked_s=1.0))
    assert await store.take(quota, "b", 0, HOLD_S) > 20.0, "a shorter one ends no longer one"
    assert await store.take(KeyQuota("other"), "b", 0, HOLD_S) == 0.0


@pytest.mark.parametrize("told", [ToldLimits(requests=0), ToldLimits(tokens=0)])
async def test_what_a_provider_says_is_left_bounds_what_is_taken(store: QuotaStore, told: ToldLimits) -> None:
    quota = KeyQuota("key", requests=Rate(0.01, 5), tokens=Rate(0.01, 5))
    await fill(store, KeyQuota("key", requests=Rate(1e4, 5), tokens=Rate(1e4, 5)))
    await store.settle(quota, "nobody", 0, told)
    assert await store.take(quota, "a", 1, HOLD_S) > 50.0


async def test_tokens_that_were_not_used_come_back_and_further_ones_are_owed(store: QuotaStore) -> None:
    quota = KeyQuota("key", tokens=Rate(1e-3, 100))
    await fill(store, KeyQuota("key", tokens=Rate(1e5, 100)), 100)
    assert await store.take(quota, "a", 80, HOLD_S) == 0.0
    await store.settle(quota, "a", -40, NOTHING_TOLD)
    assert await store.take(quota, "b", 50, HOLD_S) == 0.0
    await store.settle(quota, "b", 300, NOTHING_TOLD)
    assert await store.take(quota, "c", 1, HOLD_S) > 1e5


@pytest.mark.parametrize("seed", range(5))
async def test_both_decide_alike(redis_url: str, seed: int) -> None:
    """Buckets that time hardly changes: what is granted depends on what was done alone."""
    memory, redis = MemoryQuotas(), RedisQuotas(redis_url, uuid.uuid4().hex)
    quota = KeyQuota("key", 3, Rate(1e-6, 20), Rate(1e-6, 500))
    # A bucket that Redis does not know is full, one of a manager empty.
    await memory.settle(quota, "nobody", 0, NOTHING_TOLD)
    memory._spending["key"].requests, memory._spending["key"].tokens = 20.0, 500.0
    rng, holders = random.Random(seed), [f"{each}" for each in range(6)]
    for _ in range(200):
        holder = rng.choice(holders)
        if rng.random() < 0.5:
            tokens = rng.randrange(60)
            granted = [not await each.take(quota, holder, tokens, HOLD_S) for each in (memory, redis)]
            assert granted[0] == granted[1]
            continue
        told = ToldLimits(0.0, rng.choice([None, None, 15, 30]), rng.choice([None, None, 400]))
        further = rng.randrange(-80, 30)
        for each in (memory, redis):
            await each.settle(quota, holder, further, told)
    await redis.close()
