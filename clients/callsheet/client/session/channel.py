"""gRPC channels, one per process and event loop, made when first needed, and the payloads that go beside a session.

Bytes are put before the action that refers to them, and results by reference are fetched.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
from callsheet.client.codec.decode import decode_outcome, refusal, refusal_of_status
from callsheet.client.codec.fields import BlobReader
from callsheet.client.errors import (
    CallsheetError,
    ConnectionLostError,
    ForkedProcessError,
    NotFoundError,
    PayloadError,
    QueueFullError,
    RefusedError,
    UnavailableError,
    invalid,
)
from callsheet.client.settings import ClientOptions
from callsheet.client.words.outcomes import Outcome
from callsheet.credentials.channel import explained
from callsheet.credentials.token import read_token, why
from callsheet.timing.backoff import backoff_s
from callsheet.v1 import common_pb2, outcome_pb2, payload_service_pb2, payload_service_pb2_grpc
from callsheet.v1.google_rpc import status_pb2
from callsheet.v1.names import MAX_MESSAGE_BYTES
from google.protobuf.message import DecodeError

T = TypeVar("T")
CHANNEL_OPTIONS: dict[str, int | str] = {
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.initial_reconnect_backoff_ms": 100,
    # Also the time a connection attempt may take, so not as small as the backoff.
    "grpc.min_reconnect_backoff_ms": 5_000,
    # A scheduler that starts meanwhile is found well within `connect_timeout_s`.
    "grpc.max_reconnect_backoff_ms": 1_000,
    # gRPC servers by default end connections that ping an idle peer more often than every five minutes. A peer that is
    # gone while something is on its way to it is noticed within the timeout all the same (TCP_USER_TIMEOUT).
    "grpc.keepalive_time_ms": 360_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 0,
    # The session resumes by itself; a retry inside gRPC would hide a broken stream from it.
    "grpc.enable_retries": 0,
    # Clients of one process must not share a connection by accident: each loop owns its channel.
    "grpc.use_local_subchannel_pool": 1,
}
NOT_LET_IN = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})
"""The token is none, or not for this."""
# A response with one of these cannot get better by waiting.
_HOPELESS = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, *NOT_LET_IN})
_NO_CONNECTION = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
CHUNK_BYTES = 1024 * 1024
_SLOWEST_BYTES_PER_S = 1024 * 1024
_REMEMBERED = 65_536


class _ForkGuard:
    """Detects a fork of a process that had used gRPC: the threads and locks of gRPC are missing in the child."""

    def __init__(self) -> None:
        self.used = False
        self.forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.forked = self.forked or self.used


_fork_guard = _ForkGuard()


def open_channel(target: str, options: ClientOptions) -> grpc.aio.Channel:
    """Opens a channel, which connects when it is first used.

    Raises:
        ForkedProcessError: The process was forked after its parent had opened a channel: gRPC would hang or crash.
        InvalidArgumentError: A file of the options cannot be read, or holds no token.
    """
    if _fork_guard.forked:
        raise ForkedProcessError(
            "this process was forked after its parent had used gRPC, which then hangs or crashes: fork before the "
            'first use, or start processes with "spawn" or "forkserver"'
        )
    _fork_guard.used = True
    _check_token(options)
    merged = CHANNEL_OPTIONS | dict(options.channel_options)
    try:
        return options.credentials.open_channel(target, tuple(merged.items()))
    except OSError as error:
        raise invalid("tls", error.filename, f"must name files that can be read: {error.strerror}") from error


def _check_token(options: ClientOptions) -> None:
    try:
        if options.token_file:
            read_token(options.token_file)
    except (OSError, ValueError) as error:
        raise invalid("token_file", options.token_file, f"must be a file with a token: {why(error)}") from error


def is_hopeless(code: grpc.StatusCode) -> bool:
    """Returns True if another try cannot help a stream that ended with this code."""
    return code in _HOPELESS


async def answer_of(call: Awaitable[T]) -> T:
    """Awaits a call, with the client's exceptions instead of gRPC's.

    Raises:
        RefusedError: The call was refused.
        ConnectionLostError: There was no answer in time.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    except asyncio.CancelledError:
        # gRPC raises a CancelledError of its own, which a cancel scope around the caller would not know as its own.
        await anyio.lowlevel.checkpoint()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLostError("the call was cut, as its channel was closed") from None


async def keep_trying(call: Callable[[], Awaitable[T]], options: ClientOptions) -> T:
    """Makes an idempotent call, and makes it again while there is no connection, or at the time that its refusal names.

    Raises:
        RefusedError: The call was refused, for good or for too long.
        ConnectionLostError: There was no connection for too long.
    """
    give_up_at = anyio.current_time() + options.give_up_after_s
    failures = 0
    while True:
        try:
            return await call()
        except (ConnectionLostError, QueueFullError, UnavailableError) as error:
            failures += 1
            chance = random.SystemRandom().random()
            wait = backoff_s(failures, options.backoff_initial_s, options.backoff_max_s, random=chance)
            if isinstance(error, RefusedError):
                wait += asked_wait_s(error)
            if math.isinf(wait) or anyio.current_time() + wait >= give_up_at:
                raise
            await anyio.sleep(wait)


def asked_wait_s(refusal: RefusedError | None) -> float:
    """Seconds that the scheduler asks to wait before the same is tried again; infinite if another try cannot help."""
    is_passing = isinstance(refusal, QueueFullError | UnavailableError)
    if refusal is None or refusal.retry_after_s is None or not is_passing:
        return math.inf
    return refusal.retry_after_s


def error_of_call(error: grpc.aio.AioRpcError) -> CallsheetError:
    """Returns the client's exception for a failed call: the refusal it carries, or the lost connection."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            found = _refusal_in(value)
            if found is not None:
                return found
    text = error.details() or "no details"
    if error.code() in _NO_CONNECTION:
        return ConnectionLostError(f"{error.code().name}: {explained(text)}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # gRPC's own words: one of ours would have come with details
        text = f"the scheduler does not know this call ({text}), so it is older than this client: upgrade it"
    return refusal(error.code().value[0], text, None)


def _refusal_in(serialized: Any) -> CallsheetError | None:
    try:
        return refusal_of_status(status_pb2.Status.FromString(serialized))
    except DecodeError:
        return None  # not ours; the code and details of the call tell what is known


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
        """Forgets that contents were stored, because the scheduler reports that they are gone."""
        for sha256 in sha256s:
            self._stored.pop(sha256, None)

    def forget_all(self) -> None:
        """Forgets all contents, because a job was closed and its payloads may be deleted with it."""
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
