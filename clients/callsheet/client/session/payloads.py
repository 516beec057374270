"""Payloads beside the session: bytes put before the action that refers to them, and results fetched by reference."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
import grpc.aio
from callsheet.client.codec.blobs import BlobReader
from callsheet.client.codec.decode import decode_outcome
from callsheet.client.errors import NotFoundError, PayloadError
from callsheet.client.session.channel import answer_of, keep_trying
from callsheet.client.settings import ClientOptions
from callsheet.client.words.outcomes import Outcome
from callsheet.v1 import common_pb2, outcome_pb2, payload_service_pb2, payload_service_pb2_grpc

CHUNK_BYTES = 1024 * 1024
_SLOWEST_BYTES_PER_S = 1024 * 1024
_REMEMBERED = 65_536


async def read_outcome(message: outcome_pb2.Outcome, payloads: PayloadTransfer) -> Outcome[Any]:
    """Returns an outcome with all its bytes; results by reference are fetched.

    Raises:
        PayloadError: They are not there, or are not what they should be.
        ConnectionLostError: There was no connection for too long.
    """
    blobs = BlobReader({})
    outcome = decode_outcome(message, blobs)
    if blobs.missing:
        outcome = decode_outcome(message, BlobReader(await payloads.fetch(blobs.missing)))
    return outcome


class PayloadTransfer:
    """Puts and gets payloads on one channel, and remembers what it has put so that it is not sent again.

    What is remembered is bounded; a payload forgotten too early costs another upload, nothing else.
    """

    def __init__(self, channel: grpc.aio.Channel, options: ClientOptions) -> None:
        self._stub: Any = payload_service_pb2_grpc.PayloadServiceStub(channel)
        self._options = options
        self._stored: OrderedDict[str, None] = OrderedDict()
        self._uploading: dict[str, anyio.Event] = {}

    async def store(self, contents: Mapping[str, bytes]) -> None:
        """Makes sure that the payload store has some contents.

        Args:
            contents: Contents by their SHA-256.

        Raises:
            RefusedError: The store refused one, for instance because it is too large.
            ConnectionLostError: There was no connection for too long.
        """
        for sha256, content in contents.items():
            while sha256 not in self._stored:
                if sha256 in self._uploading:
                    await self._uploading[sha256].wait()
                else:
                    await self._upload(sha256, content)

    def forget(self, sha256s: Iterable[str]) -> None:
        """Forgets that contents were stored, as the scheduler says they are gone."""
        for sha256 in sha256s:
            self._stored.pop(sha256, None)

    def forget_all(self) -> None:
        """Forgets all contents, as a job was closed and its payloads may go with it."""
        self._stored.clear()

    async def fetch(self, references: Mapping[str, common_pb2.PayloadReference]) -> dict[str, bytes]:
        """Returns the contents of references, by their SHA-256.

        Raises:
            PayloadError: They are not there, or are not what they should be.
            ConnectionLostError: There was no connection for too long.
        """
        return {
            sha256: await keep_trying(partial(self._get, reference), self._options)
            for sha256, reference in references.items()
        }

    async def _upload(self, sha256: str, content: bytes) -> None:
        done = self._uploading[sha256] = anyio.Event()
        try:
            await keep_trying(partial(self._put, sha256, content), self._options)
            self._stored[sha256] = None
            if len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)
        finally:
            del self._uploading[sha256]
            done.set()

    async def _put(self, sha256: str, content: bytes) -> None:
        reference = common_pb2.PayloadReference(sha256=sha256, size=len(content))
        await answer_of(self._stub.PutPayload(_chunks(reference, content), **self._call_of(len(content))))

    async def _get(self, reference: common_pb2.PayloadReference) -> bytes:
        request = payload_service_pb2.GetPayloadRequest(reference=reference)
        try:
            content = await answer_of(_joined(self._stub.GetPayload(request, **self._call_of(reference.size))))
        except NotFoundError as error:
            raise PayloadError(f"payload {reference.sha256} is no longer stored") from error
        if len(content) != reference.size or hashlib.sha256(content).hexdigest() != reference.sha256:
            raise PayloadError(f"the {len(content)} bytes that came are not payload {reference.sha256}")
        return content

    def _call_of(self, size: int) -> dict[str, Any]:
        timeout_s = self._options.call_timeout_s + size / _SLOWEST_BYTES_PER_S
        return {"timeout": timeout_s, "metadata": self._options.credentials.metadata()}


async def _chunks(
    reference: common_pb2.PayloadReference, content: bytes
) -> AsyncIterator[payload_service_pb2.PutPayloadRequest]:
    view = memoryview(content)
    yield payload_service_pb2.PutPayloadRequest(chunk=bytes(view[:CHUNK_BYTES]), expected=reference)
    for start in range(CHUNK_BYTES, len(content), CHUNK_BYTES):
        yield payload_service_pb2.PutPayloadRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))


async def _joined(responses: AsyncIterable[payload_service_pb2.GetPayloadResponse]) -> bytes:
    return b"".join([response.chunk async for response in responses])
