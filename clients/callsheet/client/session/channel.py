"""gRPC channels: one per process and event loop, made when first needed."""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
from callsheet.client.codec.decode import refusal, refusal_of_status
from callsheet.client.errors import (
    CallsheetError,
    ConnectionLostError,
    ForkedProcessError,
    QueueFullError,
    RefusedError,
    UnavailableError,
    invalid,
)
from callsheet.client.settings import ClientOptions
from callsheet.credentials.channel import explained
from callsheet.credentials.token import read_token, why
from callsheet.timing.backoff import backoff_s
from callsheet.v1.google_rpc import status_pb2
from google.protobuf.message import DecodeError

T = TypeVar("T")

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest message to receive or send. Batches stay near 1 MiB; one outcome alone may be larger."""

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


class _ForkGuard:
    """Knows whether this process was forked from one that had used gRPC, whose threads and locks did not come along."""

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
    """Whether waiting and trying again cannot help a stream that ended with this code."""
    return code in _HOPELESS


async def answer_of(call: Awaitable[T]) -> T:
    """Awaits a call, with the client's exceptions in place of gRPC's.

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
    """Makes an idempotent call, and makes it again while there is no connection, or when its refusal says.

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
    """Seconds that the scheduler asks to wait before the same is tried again; infinite where that cannot help."""
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
