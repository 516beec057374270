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
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of a chunk as stores write and return them; the last one of a payload is shorter."""

DEFAULT_MAX_BYTES: Final = 1024**3
DEFAULT_UNUSED_S: Final = 24 * 3600.0

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class PayloadStoreError(Exception):
    """Base of all errors of payload stores."""


class PayloadNotFoundError(PayloadStoreError):
    """The store has no payload of this content."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"no payload with sha256 {sha256!r} is stored")


class PayloadTooLargeError(PayloadStoreError):
    """A payload is longer than the limit of the store, in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a payload may have at most {limit} bytes")


class PayloadMismatchError(PayloadStoreError):
    """The bytes are not those that were announced."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"the payload was announced as {expected} and is {actual}")


class PayloadCorruptError(PayloadStoreError):
    """Stored bytes no longer have the digest under which they were stored."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"the stored payload {sha256!r} is damaged: its bytes have another digest")


class PayloadStoreFullError(PayloadStoreError):
    """The store is full. `needed` is the size or the place that lacks capacity, `for_good` if it always will."""

    def __init__(self, needed: str, reason: str, *, for_good: bool = False) -> None:
        super().__init__(f"the payload store is full: {reason}")
        self.needed = needed
        self.for_good = for_good


class PayloadsUnusableError(PayloadStoreError):
    """The directory or server that keeps the bytes cannot be used now."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the payload store cannot be used: {reason}")


class PayloadDurabilityError(PayloadStoreError):
    """The Redis server may lose what it has acknowledged."""


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A payload's SHA-256 in lower-case hexadecimal, which is also its key, and its length in bytes."""

    sha256: str
    size: int


class Upload(ABC):
    """Bytes on their way into a store."""

    @abstractmethod
    async def write(self, chunk: bytes) -> None:
        """Take the next CHUNK_BYTES, or the last of them.

        Raises:
            PayloadStoreFullError: There is no room for them.
        """

    @abstractmethod
    async def keep(self, payload: StoredPayload, owner: str) -> None:
        """Store what was written, durably."""


class PayloadStore(ABC):
    """Content-addressed bytes. Everything is durable when its call returns; all calls may run at the same time."""

    def __init__(self, max_bytes: int, unused_s: float, clock: Callable[[], float]) -> None:
        """Opens nothing yet.

        Args:
            max_bytes: The most bytes of one payload.
            unused_s: Seconds that a payload is kept while no job retains it.
            clock: Seconds since the epoch.
        """
        self._max_bytes = max_bytes
        self._unused_s = unused_s
        self._clock = clock

    async def put(
        self, chunks: AsyncIterable[bytes], expected: StoredPayload | None = None, owner: str = ""
    ) -> StoredPayload:
        """Store the bytes of all `chunks` as one payload. Another put of the same bytes renews the time of keeping.

        Args:
            chunks: The bytes.
            expected: The digest and the size that the bytes must have.
            owner: The caller that puts the payload, for `unknown_to`; empty notes no owner.

        Raises:
            PayloadTooLargeError: The payload is longer than the store's limit.
            PayloadMismatchError: The payload is not `expected`.
            PayloadStoreFullError: The store has no room for the payload; no part of it stays.
        """
        digest, size = hashlib.sha256(), 0
        async with self._upload() as upload:
            async for chunk in _rechunk(chunks):
                size += len(chunk)
                if size > self._max_bytes:
                    raise PayloadTooLargeError(self._max_bytes)
                # About a millisecond per MiB.
                await to_thread.run_sync(digest.update, chunk)
                await upload.write(chunk)
            payload = StoredPayload(digest.hexdigest(), size)
            if expected is not None and payload != expected:
                raise PayloadMismatchError(_describe(expected), _describe(payload))
            await upload.keep(payload, owner)
        return payload

    async def get(self, sha256: str) -> AsyncIterator[bytes]:
        """The bytes in chunks of at most CHUNK_BYTES. The last chunk comes only if the digest is right.

        Raises:
            PayloadNotFoundError: On the first chunk: the payload is unknown. Later: it was removed meanwhile.
            PayloadCorruptError: Instead of the last chunk: the stored bytes have changed.
        """
        digest = hashlib.sha256()
        held: bytes | None = None
        async for chunk in self._read(sha256):
            await to_thread.run_sync(digest.update, chunk)
            if held is not None:
                yield held
            held = chunk
        if digest.hexdigest() != sha256:
            raise PayloadCorruptError(sha256)
        if held is not None:
            yield held

    @abstractmethod
    def _upload(self) -> AbstractAsyncContextManager[Upload]:
        """Returns an upload, whose bytes are removed at the end of the context unless `keep` was called."""

    @abstractmethod
    def _read(self, sha256: str) -> AsyncIterator[bytes]:
        """The bytes in chunks, as they are stored."""

    @abstractmethod
    async def size(self, sha256: str) -> int:
        """The payload's length in bytes.

        Raises:
            PayloadNotFoundError: The payload is unknown.
        """

    @abstractmethod
    async def unknown_to(self, owner: str, job_id: str, sha256s: Collection[str]) -> list[str]:
        """Return the payloads that `owner` did not put lately and that `job_id` does not retain, stored or not."""

    @abstractmethod
    async def retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
        """Keep these payloads until `job_id` is released. Repeating it only renews the time of their last use.

        Returns:
            The payloads that the job retains since this call and did not retain before.

        Raises:
            PayloadNotFoundError: A payload is unknown; none was retained.
            PayloadStoreFullError: The store has no room for the note; no payload was retained.
        """

    @abstractmethod
    async def release(self, job_id: str, sha256s: Collection[str], idle_s: float | None = None) -> int:
        """Undo `retain`. A payload that no other job retains is then kept as long as one that was put and never used.

        Args:
            job_id: The job.
            sha256s: The payloads.
            idle_s: Release only payloads that are still idle for so many seconds; see `idle`. None releases all.

        Returns:
            The number of released payloads. A payload that a concurrent call retains is kept, or retained anew.
        """

    @abstractmethod
    async def idle(self, job_id: str, idle_s: float) -> list[str]:
        """Return the payloads that a job last retained more than `idle_s` seconds ago. Uses of other jobs may count."""

    @abstractmethod
    async def release_job(self, job_id: str) -> None:
        """Remove every payload that only this job retains, but for what was put again lately: see the module.

        A job that retains nothing is fine.
        """

    @abstractmethod
    async def release_all_but(self, job_ids: Collection[str]) -> None:
        """Release every other job: for a start, since a release may be lost when the scheduler is killed."""

    @abstractmethod
    async def remove_unused(self) -> int:
        """Remove payloads that no job retains and that were put too long ago; returns how many this call removed."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of connections and files."""


async def _rechunk(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in chunks of exactly CHUNK_BYTES, but for the last."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def check_key(sha256: str) -> None:
    """Refuse what cannot be a key; since keys become file names, nothing else may pass.

    Raises:
        PayloadNotFoundError: It is not 64 lower-case hexadecimal digits.
    """
    if _SHA256.fullmatch(sha256) is None:
        raise PayloadNotFoundError(sha256)


def _describe(payload: StoredPayload) -> str:
    return f"{payload.size} bytes with sha256 {payload.sha256}"
