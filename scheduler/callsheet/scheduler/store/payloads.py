"""The payload store: bytes by their content, beside the streams. Its calls raise nothing but PayloadStoreError.

A payload that was put is held by no job at first. An action that uses it makes its job retain it, and it is kept until
every job that retains it is released, or releases it because it has not used it for long. One that nobody retains is
removed after a while.

A put of content that is there already is one of somebody else, who may rely on it and use it later. So a job that is
released takes with it only what was not put again lately; that goes after a while, as what nobody uses.

For callers that may not read everything the store also notes who put a payload, for as long as it is kept unused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from anyio import to_thread
from callsheet.scheduler.store.errors import (
    PayloadCorruptError,
    PayloadMismatchError,
    PayloadNotFoundError,
    PayloadTooLargeError,
)

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of a chunk as stores write and return them; the last one of a payload is shorter."""

DEFAULT_MAX_BYTES: Final = 1024**3
DEFAULT_UNUSED_S: Final = 24 * 3600.0

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A payload's SHA-256 in lower-case hexadecimal, which is also its key, and its length in bytes."""

    sha256: str
    size: int


class PayloadStore(Protocol):
    """Content-addressed bytes. Everything is durable when its call returns; all calls may run at the same time."""

    async def put(
        self, chunks: AsyncIterable[bytes], expected: StoredPayload | None = None, owner: str = ""
    ) -> StoredPayload:
        """Store what `chunks` add up to; storing it again renews the time that it is kept, whoever is released.

        Args:
            chunks: The bytes.
            expected: What they must add up to.
            owner: Who put it, for `unknown_to`; empty to note nobody.

        Raises:
            PayloadTooLargeError: It is longer than the store's limit.
            PayloadMismatchError: It is not `expected`.
            PayloadStoreFullError: There is no room for it; nothing of it stays.
        """

    def get(self, sha256: str) -> AsyncIterator[bytes]:
        """The bytes in chunks of at most CHUNK_BYTES. The last chunk comes only if the digest is right.

        Raises:
            PayloadNotFoundError: On the first chunk: there is none. Later: it was removed meanwhile.
            PayloadCorruptError: Instead of the last chunk: the stored bytes have changed.
        """

    async def size(self, sha256: str) -> int:
        """The length in bytes.

        Raises:
            PayloadNotFoundError: There is none.
        """

    async def unknown_to(self, owner: str, job_id: str, sha256s: Collection[str]) -> list[str]:
        """Those of some payloads that `owner` did not put lately and `job_id` does not retain, stored or not."""

    async def retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
        """Keep these payloads until `job_id` is released. Repeating it only renews the time of their last use.

        Returns:
            Those that this call retained: the job did not before.

        Raises:
            PayloadNotFoundError: One is not there; none was retained.
            PayloadStoreFullError: There is no room to note it; none was retained.
        """

    async def release(self, job_id: str, sha256s: Collection[str]) -> None:
        """Undo `retain`: what no other job retains is kept for as long as what was just put and never used."""

    async def idle(self, job_id: str, idle_s: float) -> list[str]:
        """What a job retains and retained longer ago than that the last time. Other jobs' uses may count as its own."""

    async def release_idle(self, job_id: str, sha256s: Collection[str], idle_s: float) -> int:
        """Do as `release` does with those of some payloads that are still idle; see `idle`.

        Returns:
            How many were released. One that is retained at the same time is either not released, or retained anew.
        """

    async def release_job(self, job_id: str) -> None:
        """Remove every payload that only this job retains, but for what was put again lately: see the module.

        A job that retains nothing is fine.
        """

    async def release_all_but(self, job_ids: Collection[str]) -> None:
        """Release every other job: for a start, since a release may be lost when the scheduler is killed."""

    async def remove_unused(self) -> int:
        """Remove payloads that no job retains and that were put too long ago; returns how many this call removed."""

    async def aclose(self) -> None:
        """Let go of connections and files."""


class PayloadMeter:
    """Digest, length and limit of bytes that pass by."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Count a chunk. It takes about a millisecond per MiB, so an event loop calls it in a thread.

        Raises:
            PayloadTooLargeError: The limit is exceeded.
        """
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise PayloadTooLargeError(self._max_bytes)
        self._digest.update(chunk)

    def finish(self, expected: StoredPayload | None) -> StoredPayload:
        """What passed by.

        Raises:
            PayloadMismatchError: It is not `expected`.
        """
        actual = StoredPayload(self._digest.hexdigest(), self._size)
        if expected is not None and actual != expected:
            raise PayloadMismatchError(_describe(expected), _describe(actual))
        return actual


async def rechunk(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in chunks of exactly CHUNK_BYTES, but for the last."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


async def verified(chunks: AsyncIterator[bytes], sha256: str) -> AsyncIterator[bytes]:
    """Pass chunks on, the last one only if the digest of all is `sha256`.

    Raises:
        PayloadCorruptError: It is not.
    """
    digest = hashlib.sha256()
    held: bytes | None = None
    async for chunk in chunks:
        await to_thread.run_sync(digest.update, chunk)
        if held is not None:
            yield held
        held = chunk
    if digest.hexdigest() != sha256:
        raise PayloadCorruptError(sha256)
    if held is not None:
        yield held


def check_key(sha256: str) -> None:
    """Refuse what cannot be a key; since keys become file names, nothing else may pass.

    Raises:
        PayloadNotFoundError: It is not 64 lower-case hexadecimal digits.
    """
    if _SHA256.fullmatch(sha256) is None:
        raise PayloadNotFoundError(sha256)


def _describe(payload: StoredPayload) -> str:
    return f"{payload.size} bytes with sha256 {payload.sha256}"
