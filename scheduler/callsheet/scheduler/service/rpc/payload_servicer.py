"""PayloadService: large payloads in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec.refusal_status import Context, abort
from callsheet.scheduler.service.limits.guard import caller
from callsheet.scheduler.service.limits.peer_limits import PeerLimits, peer_of
from callsheet.scheduler.service.payloads.claims import refusal_of
from callsheet.scheduler.service.payloads.rights import PayloadRights, owner_of
from callsheet.scheduler.store.payloads import (
    PayloadMismatchError,
    PayloadNotFoundError,
    PayloadStore,
    PayloadStoreError,
    PayloadTooLargeError,
    StoredPayload,
)
from callsheet.v1 import common_pb2, payload_service_pb2, payload_service_pb2_grpc
from callsheet.v1.rules.fields import blob

_CODES: Final = {
    PayloadNotFoundError: RefusalCode.NOT_FOUND,
    PayloadTooLargeError: RefusalCode.RESOURCE_EXHAUSTED,
    PayloadMismatchError: RefusalCode.INVALID_ARGUMENT,
}


class PayloadServicer(payload_service_pb2_grpc.PayloadServiceServicer):
    """See the contract."""

    def __init__(self, payloads: PayloadStore, rights: PayloadRights, limits: PeerLimits) -> None:
        self._payloads = payloads
        self._rights = rights
        self._limits = limits

    async def PutPayload(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[payload_service_pb2.PutPayloadRequest], context: Context
    ) -> payload_service_pb2.PutPayloadResponse:
        """Stores bytes and answers once they are durable."""
        async with self._limits.transfer(peer_of(context)):
            return await self._put(aiter(request_iterator))

    async def _put(
        self, requests: AsyncIterator[payload_service_pb2.PutPayloadRequest]
    ) -> payload_service_pb2.PutPayloadResponse:
        first = await anext(requests, payload_service_pb2.PutPayloadRequest())
        expected = None
        if first.HasField("expected"):
            blob("expected", common_pb2.Blob(reference=first.expected))
            expected = StoredPayload(first.expected.sha256, first.expected.size)
        try:
            stored = await self._payloads.put(_chunks(first, requests), expected, owner_of(caller()))
        except PayloadStoreError as error:
            raise _refusal(error) from error
        reference = common_pb2.PayloadReference(sha256=stored.sha256, size=stored.size)
        return payload_service_pb2.PutPayloadResponse(reference=reference)

    async def GetPayload(  # noqa: N802
        self, request: payload_service_pb2.GetPayloadRequest, context: Context
    ) -> AsyncIterator[payload_service_pb2.GetPayloadResponse]:
        """Reads bytes in chunks."""
        try:
            blob("reference", common_pb2.Blob(reference=request.reference))
            await self._rights.check_readable(caller(), request.reference.sha256)
            async with self._limits.transfer(peer_of(context)):
                async for chunk in self._payloads.get(request.reference.sha256):
                    yield payload_service_pb2.GetPayloadResponse(chunk=chunk)
        except RefusedError as refusal:
            await abort(context, refusal)
        except PayloadStoreError as error:
            await abort(context, _refusal(error))


async def _chunks(
    first: payload_service_pb2.PutPayloadRequest, rest: AsyncIterator[payload_service_pb2.PutPayloadRequest]
) -> AsyncIterator[bytes]:
    yield first.chunk
    async for request in rest:
        yield request.chunk


def _refusal(error: PayloadStoreError) -> RefusedError:
    code = _CODES.get(type(error))
    return refusal_of(error) if code is None else RefusedError(code, "payload", "", str(error))
