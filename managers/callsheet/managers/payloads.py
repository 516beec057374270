"""Payloads by reference, over the scheduler's PayloadService."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
import grpc
import grpc.aio
from callsheet.credentials.channel import Credentials
from callsheet.managers.executor import PayloadMissingError, PayloadTooLargeError, PayloadUnavailableError
from callsheet.timing.backoff import backoff_s
from callsheet.v1 import common_pb2, payload_service_pb2, payload_service_pb2_grpc
from callsheet.v1.names import MAX_INLINE_BYTES

if TYPE_CHECKING:
    from callsheet.v1.payload_service_pb2_grpc import PayloadServiceAsyncStub

CHUNK_BYTES = 1 << 20
# A transfer may take this long, and longer in proportion to its size.
BASE_TIMEOUT_S = 10.0
SLOWEST_BYTES_PER_S = 4 << 20
# Another try may help: the scheduler restarts, or a connection broke in the middle.
TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)

Result = TypeVar("Result")


class SchedulerPayloads:
    """`PayloadAccess` by way of the scheduler.

    Args:
        channel: A channel to the scheduler.
        max_bytes: The largest payload that is read or written.
        retry_for_s: How long to keep trying while the scheduler cannot be reached.
        credentials: Who says so.
    """

    def __init__(
        self, channel: grpc.aio.Channel, max_bytes: int, retry_for_s: float, credentials: Credentials | None = None
    ) -> None:
        stub = payload_service_pb2_grpc.PayloadServiceStub(channel)
        self._stub = cast("PayloadServiceAsyncStub", stub)
        self._max_bytes = max_bytes
        self._retry_for_s = retry_for_s
        self._credentials = credentials or Credentials()

    async def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns the bytes of a blob, inline or by reference; a blob without content is empty.

        Raises:
            PayloadMissingError: The payload store does not have them.
            PayloadUnavailableError: The payload store cannot be reached.
            PayloadTooLargeError: They are more than this manager takes.
        """
        if blob.WhichOneof("content") != "reference":
            return blob.inline
        reference = blob.reference
        self._check_size(reference.size)
        return await self._persist(reference.sha256, lambda: self._get(reference))

    async def write(self, content: bytes) -> common_pb2.Blob:
        """Returns a blob for the bytes: inline up to 64 KiB, otherwise stored first.

        Raises:
            PayloadUnavailableError: The payload store cannot be reached.
            PayloadTooLargeError: They are more than the payload store takes.
        """
        if len(content) <= MAX_INLINE_BYTES:
            return common_pb2.Blob(inline=content)
        self._check_size(len(content))
        digest = hashlib.sha256(content).hexdigest()
        reference = common_pb2.PayloadReference(sha256=digest, size=len(content))
        await self._persist(digest, lambda: self._put(content, reference))
        return common_pb2.Blob(reference=reference)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise PayloadTooLargeError(f"a payload of {size} bytes is more than the {self._max_bytes} allowed here")

    async def _persist(self, digest: str, transfer: Callable[[], Awaitable[Result]]) -> Result:
        """Repeats a transfer, which is idempotent, until it works, is refused, or time is up."""
        give_up_at = anyio.current_time() + self._retry_for_s
        failures = 0
        while True:
            try:
                return await transfer()
            except grpc.aio.AioRpcError as error:
                _raise_refusal(digest, error)
                failures += 1
                delay = backoff_s(failures, 0.1, 2.0, random=random.random())
                if anyio.current_time() + delay > give_up_at:
                    raise PayloadUnavailableError(
                        f"payload {digest}: {error.code().name} for {self._retry_for_s:g} s: {error.details()}"
                    ) from error
                await anyio.sleep(delay)

    async def _get(self, reference: common_pb2.PayloadReference) -> bytes:
        request = payload_service_pb2.GetPayloadRequest(reference=reference)
        content = bytearray()
        call = self._stub.GetPayload(request, timeout=_timeout_s(reference.size), metadata=self._credentials.metadata())
        try:
            async for response in call:
                content += response.chunk
                if len(content) > reference.size:
                    break
        finally:
            call.cancel()
        digest = hashlib.sha256(content).hexdigest()
        if len(content) != reference.size or digest != reference.sha256:
            raise PayloadMissingError(
                f"payload {reference.sha256}: expected {reference.size} bytes, got {len(content)} with SHA-256 {digest}"
            )
        return bytes(content)

    async def _put(self, content: bytes, expected: common_pb2.PayloadReference) -> None:
        response = await self._stub.PutPayload(
            _chunks(content, expected), timeout=_timeout_s(len(content)), metadata=self._credentials.metadata()
        )
        if response.reference != expected:
            raise PayloadMissingError(f"payload {expected.sha256}: stored as {response.reference.sha256}")


async def _chunks(
    content: bytes, expected: common_pb2.PayloadReference
) -> AsyncIterator[payload_service_pb2.PutPayloadRequest]:
    for begin in range(0, len(content), CHUNK_BYTES):
        chunk = content[begin : begin + CHUNK_BYTES]
        if begin == 0:
            yield payload_service_pb2.PutPayloadRequest(chunk=chunk, expected=expected)
        else:
            yield payload_service_pb2.PutPayloadRequest(chunk=chunk)


def _timeout_s(size: int) -> float:
    return BASE_TIMEOUT_S + size / SLOWEST_BYTES_PER_S


def _raise_refusal(digest: str, error: grpc.aio.AioRpcError) -> None:
    """Raises what an rpc error means, or returns if another try may help."""
    if error.code() is grpc.StatusCode.NOT_FOUND:
        raise PayloadMissingError(f"payload {digest}: the payload store does not have it") from error
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise PayloadTooLargeError(f"payload {digest}: refused by the payload store: {error.details()}") from error
    if error.code() not in TRANSIENT:
        raise PayloadUnavailableError(f"payload {digest}: {error.code().name}: {error.details()}") from error
