"""Bodies that tests put into payload stores and read again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import anyio
from callsheet.scheduler.store.payloads import PayloadNotFoundError, PayloadStore


async def parts(body: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    """A body as it comes over the network."""
    for start in range(0, len(body), size):
        await anyio.lowlevel.checkpoint()
        yield body[start : start + size]


async def put(store: PayloadStore, body: bytes) -> str:
    """Stores a body; returns its key."""
    return (await store.put(parts(body))).sha256


async def read(store: PayloadStore, sha256: str) -> bytes:
    """All bytes of a payload."""
    return b"".join([chunk async for chunk in store.get(sha256)])


def key_of(body: bytes) -> str:
    """The key under which a body is stored."""
    return hashlib.sha256(body).hexdigest()


async def has(store: PayloadStore, sha256: str) -> bool:
    """Whether a payload is there."""
    try:
        await store.size(sha256)
    except PayloadNotFoundError:
        return False
    return True
