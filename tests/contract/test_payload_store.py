"""What every payload store does, in local files and in Redis."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import (
    CHUNK_BYTES,
    PayloadCorruptError,
    PayloadDurabilityError,
    PayloadMismatchError,
    PayloadNotFoundError,
    PayloadStore,
    PayloadTooLargeError,
    StoredPayload,
)
from callsheet.scheduler.store.redis_payloads import RedisPayloadStore
from redis.asyncio import Redis

from tests.support.payload_bodies import has, key_of, parts, put, read
from tests.support.servers import redis_server

pytestmark = pytest.mark.anyio
MAX_BYTES = 4 * CHUNK_BYTES
BODIES = [b"", b"x", b"y" * CHUNK_BYTES, os.urandom(CHUNK_BYTES + 1), os.urandom(MAX_BYTES)]


@dataclass(frozen=True)
class Place:
    """Where payloads are; opening it again is what a restarted scheduler does."""

    open: Callable[[], Awaitable[PayloadStore]]
    open_impatient: Callable[[], Awaitable[PayloadStore]]
    damage: Callable[[str], Awaitable[None]]


def local_place(directory: Path) -> Place:
    """Local files."""

    async def damage(sha256: str) -> None:
        path = anyio.Path(directory / "objects" / sha256)
        await path.write_bytes(b"?" + (await path.read_bytes())[1:])

    return Place(
        open=lambda: LocalPayloadStore.open(directory, max_bytes=MAX_BYTES),
        open_impatient=lambda: LocalPayloadStore.open(directory, unused_s=0.01),
        damage=damage,
    )


def redis_place(url: str) -> Place:
    """Redis, under names that nobody else uses."""
    namespace = uuid.uuid4().hex

    async def damage(sha256: str) -> None:
        async with Redis.from_url(url) as client:
            reply = client.hset(f"{namespace}:content:{sha256}", "0", b"?")
            assert not isinstance(reply, int)
            await reply

    return Place(
        open=lambda: RedisPayloadStore.open(url, namespace=namespace, max_bytes=MAX_BYTES),
        open_impatient=lambda: RedisPayloadStore.open(url, namespace=namespace, unused_s=0.01),
        damage=damage,
    )


@pytest.fixture(params=["local", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place for payloads."""
    if request.param == "local":
        return local_place(tmp_path / "payloads")
    return redis_place(request.getfixturevalue("redis_url"))


@pytest.fixture
async def store(place: Place) -> AsyncIterator[PayloadStore]:
    """An empty store."""
    async with AsyncExitStack() as stack:
        store = await place.open()
        stack.push_async_callback(store.aclose)
        yield store


@pytest.mark.parametrize("body", BODIES, ids=len)
async def test_what_is_put_can_be_got(store: PayloadStore, body: bytes) -> None:
    stored = await store.put(parts(body))
    assert stored == StoredPayload(key_of(body), len(body))
    assert await store.size(stored.sha256) == len(body)
    chunks = [chunk async for chunk in store.get(stored.sha256)]
    assert b"".join(chunks) == body
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


async def test_a_payload_survives_a_restart(place: Place) -> None:
    store = await place.open()
    sha256 = await put(store, b"body")
    await store.retain("job", [sha256])
    await store.aclose()
    store = await place.open()
    assert await read(store, sha256) == b"body"
    await store.release_job("job")
    assert not await has(store, sha256)
    await store.aclose()


async def test_an_unknown_payload_is_not_found(store: PayloadStore) -> None:
    for key in (key_of(b"never put"), "", "../../etc/passwd", "A" * 64, "a" * 63 + "\n"):
        with pytest.raises(PayloadNotFoundError):
            await read(store, key)
        with pytest.raises(PayloadNotFoundError):
            await store.size(key)
        with pytest.raises(PayloadNotFoundError):
            await store.retain("job", [key])


async def test_a_payload_over_the_limit_is_refused_and_not_kept(store: PayloadStore) -> None:
    body = bytes(MAX_BYTES + 1)
    with pytest.raises(PayloadTooLargeError, match=f"at most {MAX_BYTES} bytes"):
        await store.put(parts(body))
    assert not await has(store, key_of(body))


async def test_announced_bytes_are_verified(store: PayloadStore) -> None:
    announced = StoredPayload(key_of(b"right"), 5)
    assert await store.put(parts(b"right"), announced) == announced
    for wrong in (StoredPayload(key_of(b"right"), 6), StoredPayload(key_of(b"other"), 5)):
        with pytest.raises(PayloadMismatchError, match="announced as"):
            await store.put(parts(b"wrong"), wrong)
    assert not await has(store, key_of(b"wrong"))


async def test_a_source_that_breaks_off_leaves_nothing(store: PayloadStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(CHUNK_BYTES)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await store.put(broken())
    assert not await has(store, key_of(bytes(CHUNK_BYTES)))


async def test_many_puts_of_the_same_bytes_at_once(store: PayloadStore) -> None:
    body = os.urandom(2 * CHUNK_BYTES + 7)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(put, store, body)
    assert await read(store, key_of(body)) == body
    await store.retain("job", [key_of(body)])
    await put(store, body)
    await store.release_job("job")
    assert await read(store, key_of(body)) == body, "nine of them may use it still"


async def test_damaged_bytes_are_never_handed_out_as_whole(place: Place, store: PayloadStore) -> None:
    sha256 = await put(store, b"whole")
    await place.damage(sha256)
    with pytest.raises(PayloadCorruptError, match=sha256):
        await read(store, sha256)


async def test_a_payload_stays_until_all_jobs_that_retain_it_are_released(store: PayloadStore) -> None:
    shared, own = await put(store, b"shared"), await put(store, b"own")
    await store.retain("one", [shared, own, shared])
    await store.retain("one", [shared])
    await store.retain("two/../%s*", [shared])
    await store.release_job("one")
    await store.release_job("one")
    await store.release_job("never seen")
    assert await has(store, shared)
    assert not await has(store, own)
    await store.release_job("two/../%s*")
    assert not await has(store, shared)


async def test_retaining_is_all_or_nothing(store: PayloadStore) -> None:
    known, unknown = await put(store, b"known"), key_of(b"unknown")
    with pytest.raises(PayloadNotFoundError, match=unknown):
        await store.retain("job", [known, unknown])
    await store.retain("other", [known])
    await store.release_job("other")
    assert not await has(store, known), "the first job must not retain it"
    await store.retain("job", [])


async def test_a_released_payload_can_be_put_again(store: PayloadStore) -> None:
    for job in ("one", "two"):
        sha256 = await put(store, b"again")
        await store.retain(job, [sha256])
        await store.release_job(job)
    assert not await has(store, sha256)


async def test_after_a_restart_jobs_that_are_no_longer_open_are_released(place: Place) -> None:
    store = await place.open()
    keys = {job: await put(store, job.encode()) for job in ("open", "closed", "lost")}
    for job, sha256 in keys.items():
        await store.retain(job, [sha256])
    await store.aclose()
    store = await place.open()
    await store.release_all_but(["open", "never seen"])
    assert [job for job, sha256 in keys.items() if await has(store, sha256)] == ["open"]
    await store.aclose()


async def release_job(store: PayloadStore, sha256: str) -> None:
    """Releases the job "one" as its end does."""
    await store.release_job("one")


async def release_others(store: PayloadStore, sha256: str) -> None:
    """Releases the job "one" as a start does."""
    await store.release_all_but(["another"])


async def release_some(store: PayloadStore, sha256: str) -> None:
    """Releases a payload as a refused submit does."""
    await store.release("one", [sha256])


async def release_idle(store: PayloadStore, sha256: str) -> None:
    """Releases a payload as a job that has not used it for long; here, for less than no time."""
    assert await store.release("one", [sha256], -60.0) == 1


@pytest.mark.parametrize("release", [release_job, release_others, release_some, release_idle])
@pytest.mark.parametrize("first", ["user", "other"])
async def test_no_release_takes_what_somebody_else_put(
    place: Place, release: Callable[[PayloadStore, str], Awaitable[None]], first: str
) -> None:
    store = await place.open()
    sha256 = await put(store, b"shared")
    if first == "other":
        await put(store, b"shared")
    await store.retain("one", [sha256])
    if first == "user":
        await put(store, b"shared")
    # What was acknowledged holds, even if a scheduler is killed right after it.
    killed, store = store, await place.open()
    await release(store, sha256)
    await store.remove_unused()
    assert list(await store.retain("two", [sha256])) == [sha256]
    assert await read(store, sha256) == b"shared"
    await killed.aclose()
    await store.aclose()


async def test_what_was_put_again_and_is_released_goes_after_a_while(place: Place) -> None:
    store = await place.open()
    sha256 = await put(store, b"shared")
    await store.retain("one", [sha256])
    await store.retain("two", [sha256])
    await store.aclose()
    store = await place.open_impatient()
    await put(store, b"shared")
    await store.release_job("one")
    await store.release_job("two")
    with anyio.fail_after(30):
        while await has(store, sha256):
            await store.remove_unused()
            await anyio.sleep(0.01)
    await store.aclose()


async def test_what_no_job_retains_is_removed_after_a_while(place: Place) -> None:
    store = await place.open()
    kept = await put(store, b"kept")
    await store.retain("job", [kept])
    await store.aclose()
    store = await place.open_impatient()
    unused = await put(store, b"unused")
    with anyio.fail_after(30):
        while await has(store, unused):
            await store.remove_unused()
            await anyio.sleep(0.01)
    await store.remove_unused()
    assert await read(store, kept) == b"kept"
    await store.aclose()


async def test_retaining_releasing_and_putting_at_once_loses_nothing(store: PayloadStore) -> None:
    sha256 = await put(store, b"contended")
    await store.retain("anchor", [sha256])

    async def job(name: str) -> None:
        for _ in range(10):
            await put(store, b"contended")
            await store.retain(name, [sha256])
            await store.remove_unused()
            await store.release_job(name)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(job, f"job-{number}")
    assert await read(store, sha256) == b"contended"
    await store.release_job("anchor")
    assert await read(store, sha256) == b"contended", "it was put again lately"


async def test_a_release_of_some_lets_go_of_them_alone(store: PayloadStore) -> None:
    first, second = await put(store, b"first"), await put(store, b"second")
    assert set(await store.retain("job", [first, second])) == {first, second}
    assert list(await store.retain("job", [first])) == []
    await store.retain("another", [second])
    await store.release("job", [first, second])
    await store.release("job", [first])
    for sha256 in (first, second):
        assert await has(store, sha256), "it is kept for as long as what was just put"
    assert list(await store.retain("job", [second])) == [second]
    await store.release_job("job")
    assert await has(store, second), "another job retains it still"


async def test_what_was_released_goes_with_what_nobody_ever_used(place: Place) -> None:
    store = await place.open()
    sha256 = await put(store, b"refused")
    await store.retain("job", [sha256])
    await store.aclose()
    store = await place.open_impatient()
    await store.release("job", [sha256])
    with anyio.fail_after(30.0):
        while await has(store, sha256):
            await store.remove_unused()
    await store.aclose()


async def test_half_written_files_are_removed_at_the_next_start(tmp_path: Path) -> None:
    await (await LocalPayloadStore.open(tmp_path)).aclose()
    left_over = anyio.Path(tmp_path / "incoming" / "half")
    await left_over.write_bytes(b"ha")
    await (await LocalPayloadStore.open(tmp_path)).aclose()
    assert not await left_over.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--appendonly", "no"], "appendonly = 'no'"),
        (["--appendfsync", "everysec"], "appendfsync = 'everysec'"),
        (["--maxmemory-policy", "allkeys-lru"], "maxmemory-policy = 'allkeys-lru'"),
    ],
)
async def test_a_redis_that_may_lose_what_it_acknowledged_is_refused(arguments: list[str], complaint: str) -> None:
    with redis_server(*arguments) as url, pytest.raises(PayloadDurabilityError, match=complaint):
        await RedisPayloadStore.open(url)


async def test_who_put_a_payload_is_known_until_it_could_be_gone(place: Place) -> None:
    store = await place.open()
    mine = (await store.put(parts(b"mine"), owner="me")).sha256
    await put(store, b"nobody's")
    never = key_of(b"never")
    both = [mine, key_of(b"nobody's"), never]
    assert await store.unknown_to("me", "job", both) == both[1:]
    assert await store.unknown_to("you", "job", both) == both
    await store.retain("job", both[:2])
    assert await store.unknown_to("you", "job", both) == [never]
    await store.put(parts(b"mine"), owner="you")
    assert await store.unknown_to("you", "", both) == both[1:]
    await store.aclose()
    store = await place.open_impatient()
    # A note outlives a restart, and the job that it is not of.
    assert await store.unknown_to("me", "", [mine]) == []
    await store.put(parts(b"late"), owner="late")
    with anyio.fail_after(30):
        while not await store.unknown_to("late", "", [key_of(b"late")]):
            await store.remove_unused()
            await anyio.sleep(0.01)
    await store.aclose()
