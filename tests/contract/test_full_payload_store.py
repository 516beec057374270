"""A payload store without room: it refuses by name, keeps nothing half written, and goes on once there is room."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import (
    CHUNK_BYTES,
    PayloadMismatchError,
    PayloadStore,
    PayloadStoreFullError,
    StoredPayload,
)
from callsheet.scheduler.store.redis_payloads import RedisPayloadStore
from redis.asyncio import Redis

from tests.support.payload_bodies import has, key_of, parts, put, read
from tests.support.servers import redis_server

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def full_redis(room: int) -> AsyncIterator[tuple[PayloadStore, Redis]]:
    """A store in a Redis that takes about so many bytes more."""
    with redis_server() as url:
        store = await RedisPayloadStore.open(url, max_bytes=64 * CHUNK_BYTES)
        async with Redis.from_url(url) as client:
            info: Any = await client.info("memory")
            await client.config_set("maxmemory", int(info["used_memory"]) + room)
            yield store, client
            await store.aclose()


async def test_a_full_redis_refuses_and_keeps_nothing_half_written() -> None:
    async with full_redis(6 * CHUNK_BYTES) as (store, client):
        kept = await put(store, b"k" * CHUNK_BYTES)
        with pytest.raises(PayloadStoreFullError, match="maxmemory") as caught:
            await put(store, os.urandom(20 * CHUNK_BYTES))
        assert caught.value.needed
        assert [key async for key in client.scan_iter("*incoming*")] == []
        assert await read(store, kept) == b"k" * CHUNK_BYTES
        assert await put(store, b"small") == key_of(b"small")


async def test_a_redis_that_is_full_already_retains_nothing_and_still_releases() -> None:
    async with full_redis(6 * CHUNK_BYTES) as (store, client):
        kept = await put(store, b"k" * CHUNK_BYTES)
        await store.retain("job", [kept])
        await client.config_set("maxmemory", 1)
        with pytest.raises(PayloadStoreFullError):
            await store.retain("another", [kept])
        with pytest.raises(PayloadStoreFullError):
            await put(store, b"small")
        await store.release_job("job")
        assert not await has(store, kept)


async def test_the_bytes_of_all_local_payloads_are_bounded(tmp_path: Path) -> None:
    bodies = [os.urandom(CHUNK_BYTES) for _ in range(3)]
    store = await LocalPayloadStore.open(tmp_path, max_stored_bytes=5 * CHUNK_BYTES // 2)
    first, second = [await put(store, body) for body in bodies[:2]]
    await store.retain("job", [first])
    with pytest.raises(PayloadStoreFullError, match=f"of its {5 * CHUNK_BYTES // 2} bytes"):
        await put(store, bodies[2])
    assert list((tmp_path / "incoming").iterdir()) == []
    # What is refused or failed half-way counts for nothing, nor does what is there already.
    with pytest.raises(PayloadMismatchError):
        await store.put(parts(b"x" * 1000), StoredPayload("0" * 64, 1000))
    await put(store, b"y" * (CHUNK_BYTES // 2 - 1))
    # A restarted store counts what is there.
    store = await LocalPayloadStore.open(tmp_path, max_stored_bytes=5 * CHUNK_BYTES // 2)
    with pytest.raises(PayloadStoreFullError):
        await put(store, bodies[2])
    await store.release_job("job")
    assert await put(store, bodies[2]) == key_of(bodies[2])
    assert await read(store, second) == bodies[1]


async def test_a_put_of_what_is_there_takes_no_room(tmp_path: Path) -> None:
    body = os.urandom(CHUNK_BYTES)
    store = await LocalPayloadStore.open(tmp_path, max_stored_bytes=5 * CHUNK_BYTES // 2)
    for _ in range(5):
        await put(store, body)
    await put(store, body[::-1])


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 16 MiB; who may not mount one has a directory that is said to be so large."""
    directory, size = tmp_path / "disk", 16 * CHUNK_BYTES
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        yield directory
        subprocess.run(["umount", directory], check=True)
        return

    def usage(_: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        return SimpleNamespace(total=size, free=max(size - used, 0))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    yield directory


async def test_a_full_disk_refuses_and_keeps_nothing_half_written(small_disk: Path) -> None:
    store = await LocalPayloadStore.open(small_disk / "payloads")
    kept = await put(store, b"k" * CHUNK_BYTES)
    with pytest.raises(PayloadStoreFullError, match="must stay free"):
        await put(store, os.urandom(40 * CHUNK_BYTES))
    assert list((small_disk / "payloads" / "incoming").iterdir()) == []
    # Somebody else takes what was to stay free.
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(PayloadStoreFullError):
        await put(store, os.urandom(CHUNK_BYTES))
    assert list((small_disk / "payloads" / "incoming").iterdir()) == []
    (small_disk / "other").unlink()
    assert await read(store, kept) == b"k" * CHUNK_BYTES
    await put(store, os.urandom(CHUNK_BYTES))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
async def test_a_disk_that_is_full_at_any_call_is_a_full_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = await LocalPayloadStore.open(tmp_path)
    first, second = await put(store, b"first"), await put(store, b"second")

    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    link = Path.hardlink_to
    monkeypatch.setattr(Path, "hardlink_to", lambda self, to: full() if self.name == second else link(self, to))
    with pytest.raises(PayloadStoreFullError):
        await store.retain("job", [first, second])
    monkeypatch.undo()
    assert (tmp_path / "objects" / first).stat().st_nlink == 1, "none was retained"
    broken: tuple[tuple[object, str], ...] = ((os, "fsync"), (Path, "rename"))
    for where, name in broken:
        monkeypatch.setattr(where, name, full)
        with pytest.raises(PayloadStoreFullError):
            await put(store, b"third")
        monkeypatch.undo()
        assert list((tmp_path / "incoming").iterdir()) == []
    assert await put(store, b"third") == key_of(b"third")
