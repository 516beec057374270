"""What every payload store does with payloads that a job has not used for long, in local files and in Redis."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import PayloadNotFoundError, PayloadStore
from callsheet.scheduler.store.redis_payloads import RedisPayloadStore
from redis.asyncio import Redis

from tests.support.servers import redis_server

pytestmark = pytest.mark.anyio
START = 1_700_000_000.0
IDLE_S = 60.0


class SteppedClock:
    """Seconds since the epoch, as a test says."""

    def __init__(self) -> None:
        self.seconds = START

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> SteppedClock:
    """The clock of the stores."""
    return SteppedClock()


@pytest.fixture(params=["local", "redis"])
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: SteppedClock
) -> Callable[[], Awaitable[PayloadStore]]:
    """Opens a store that is empty at first; opening it again is what a restarted scheduler does."""
    if request.param == "local":
        return lambda: LocalPayloadStore.open(tmp_path / "payloads", clock=clock)
    url, namespace = request.getfixturevalue("redis_url"), uuid.uuid4().hex
    return lambda: RedisPayloadStore.open(url, namespace=namespace, clock=clock)


@pytest.fixture
async def store(open_store: Callable[[], Awaitable[PayloadStore]]) -> AsyncIterator[PayloadStore]:
    """An empty store."""
    store = await open_store()
    yield store
    await store.aclose()


async def put(store: PayloadStore, body: bytes) -> str:
    """Stores a body; returns its key."""

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    return (await store.put(chunks())).sha256


async def read(store: PayloadStore, sha256: str) -> bytes:
    """All bytes of a payload."""
    return b"".join([chunk async for chunk in store.get(sha256)])


async def retained(store: PayloadStore, job_id: str, sha256s: list[str]) -> list[str]:
    """Those that a job retains."""
    unknown = await store.unknown_to("nobody", job_id, sha256s)
    return [each for each in sha256s if each not in unknown]


async def test_what_was_used_lately_is_not_idle(store: PayloadStore, clock: SteppedClock) -> None:
    used, idle = await put(store, b"used"), await put(store, b"idle")
    await store.retain("job", [used, idle])
    assert await store.idle("job", IDLE_S) == []
    clock.seconds += 50.0
    assert list(await store.retain("job", [used])) == []
    clock.seconds += 50.0
    assert await store.idle("job", IDLE_S) == [idle]
    assert await store.idle("another", IDLE_S) == []
    assert await store.release("job", [used, idle], IDLE_S) == 1
    assert await store.release("job", [used, idle], IDLE_S) == 0
    assert await retained(store, "job", [used, idle]) == [used]
    assert await store.idle("job", IDLE_S) == []


async def test_what_is_idle_goes_as_what_was_released(store: PayloadStore, clock: SteppedClock) -> None:
    alone, shared = await put(store, b"alone"), await put(store, b"shared")
    await store.retain("job", [alone, shared])
    await store.retain("another", [shared])
    clock.seconds += 2 * IDLE_S
    assert sorted(await store.idle("job", IDLE_S)) == sorted([alone, shared])
    assert await store.release("job", [alone, shared], IDLE_S) == 2
    assert await read(store, alone) == b"alone"
    assert list(await store.retain("job", [alone])) == [alone], "it is retained anew"
    assert await store.idle("job", IDLE_S) == []
    await store.release_job("job")
    with pytest.raises(PayloadNotFoundError):
        await store.size(alone)
    assert await read(store, shared) == b"shared", "another job retains it still"


async def test_the_last_use_is_known_after_a_restart(
    open_store: Callable[[], Awaitable[PayloadStore]], clock: SteppedClock
) -> None:
    store = await open_store()
    first, second = await put(store, b"first"), await put(store, b"second")
    await store.retain("job", [first, second])
    clock.seconds += IDLE_S
    await store.retain("job", [second])
    await store.aclose()
    store = await open_store()
    clock.seconds += 1.0
    assert await store.idle("job", IDLE_S) == [first]
    await store.aclose()


async def test_a_job_of_the_same_id_begins_anew(store: PayloadStore, clock: SteppedClock) -> None:
    sha256 = await put(store, b"body")
    await store.retain("job", [sha256])
    clock.seconds += 2 * IDLE_S
    await store.release_job("job")
    assert await store.idle("job", IDLE_S) == []
    assert await store.release("job", [sha256], IDLE_S) == 0
    await store.retain("job", [await put(store, b"body")])
    assert await store.idle("job", IDLE_S) == []


async def test_a_release_and_a_use_at_once_lose_nothing(store: PayloadStore, clock: SteppedClock) -> None:
    sha256 = await put(store, b"contended")
    for _ in range(20):
        await store.retain("job", [sha256])
        clock.seconds += 2 * IDLE_S
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.release, "job", [sha256], IDLE_S)
            tasks.start_soon(store.retain, "job", [sha256])
        assert await retained(store, "job", [sha256]) == [sha256]
        assert await store.idle("job", IDLE_S) == []


async def test_what_a_local_store_let_go_is_removed_once_it_is_old_enough(tmp_path: Path, clock: SteppedClock) -> None:
    store = await LocalPayloadStore.open(tmp_path, unused_s=100.0, clock=clock)
    sha256 = await put(store, b"body")
    clock.seconds += 50.0
    await store.retain("job", [sha256])
    clock.seconds += 70.0
    assert await store.release("job", [sha256], IDLE_S) == 1
    assert await store.remove_unused() == 0
    clock.seconds += 40.0
    assert await store.remove_unused() == 1


async def test_a_put_again_of_long_ago_keeps_nothing_in_a_local_store(tmp_path: Path, clock: SteppedClock) -> None:
    store = await LocalPayloadStore.open(tmp_path, unused_s=100.0, clock=clock)
    for put_again_at in (90.0, 110.0):
        sha256 = await put(store, b"body")
        await put(store, b"body")
        clock.seconds += put_again_at
        await store.retain("job", [sha256])
        await store.release_job("job")
        assert (tmp_path / "objects" / sha256).exists() == (put_again_at < 100.0)
    assert await store.remove_unused() == 0
    assert list((tmp_path / "owners").iterdir()) == []


async def test_a_release_that_redis_runs_late_takes_nothing_from_a_job_opened_again(
    redis_url: str, clock: SteppedClock
) -> None:
    namespace = uuid.uuid4().hex
    before = await RedisPayloadStore.open(redis_url, namespace=namespace, clock=lambda: START)
    store = await RedisPayloadStore.open(redis_url, namespace=namespace, clock=clock)
    both, former = await put(store, b"both"), await put(store, b"former")
    await store.retain("job", [both, former])
    clock.seconds += 1.0
    await store.retain("job", [both])
    await before.release_job("job")
    assert await retained(store, "job", [both, former]) == [both]
    await before.release_all_but(["another"])
    for sha256 in (both, former):
        with pytest.raises(PayloadNotFoundError):
            await store.size(sha256)
    await before.aclose()
    await store.aclose()


async def test_a_full_redis_lets_go_of_what_is_idle(clock: SteppedClock) -> None:
    with redis_server() as url:
        store = await RedisPayloadStore.open(url, clock=clock)
        sha256 = await put(store, b"body")
        await store.retain("job", [sha256])
        clock.seconds += 2 * IDLE_S
        async with Redis.from_url(url) as client:
            await client.config_set("maxmemory", 1)
            assert await store.idle("job", IDLE_S) == [sha256]
            assert await store.release("job", [sha256], IDLE_S) == 1
        await store.aclose()
