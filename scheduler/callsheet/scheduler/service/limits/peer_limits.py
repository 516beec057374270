"""Bounds on the calls, and on the items of streams, of one peer.

A peer is a token if the scheduler asks for tokens, else an address.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import grpc
import grpc.aio
from callsheet.scheduler.access.methods import OPEN_TO_ALL
from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.words.registration import QuotaDescription
from callsheet.scheduler.service.codec.refusal_status import Context, abort
from callsheet.scheduler.service.limits.guard import Handler, caller
from callsheet.scheduler.service.limits.refusal_log import address_of
from callsheet.scheduler.service.limits.settings import LimitSettings

MAX_PEERS: Final = 10_000
"""Peers of which is remembered what they did lately; whoever did nothing for longest is forgotten."""

BURST_S: Final = 4
"""Seconds of its rate that a peer may spend at once."""

MAX_TRANSFERS: Final = 16
"""Payloads that one peer puts and gets at once. One takes a file, and 6 MiB while its reader is slow; others wait."""

_CALLS_END_S: Final = 1.0
_WATCH: Final = "/grpc.health.v1.Health/Watch"

_KINDS: Final[dict[str, Callable[..., Handler]]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


@dataclass(slots=True)
class _Peer:
    requests: TokenBucket
    items: TokenBucket
    calls: int = 0
    transfers: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(MAX_TRANSFERS))
    questions: anyio.Lock = field(default_factory=anyio.Lock)


class PeerLimits:
    """Counts what each peer does. Not for several threads.

    Attributes:
        one_answer: Held by who makes a long answer on the event loop, in turns with all else: one at a time.
    """

    def __init__(self, settings: LimitSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self.one_answer = anyio.Lock()

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Counts a call of a peer while it lasts.

        Raises:
            RefusedError: RESOURCE_EXHAUSTED: it makes too many, or too many at once; says when to try again.
        """
        peer, limits = self._peer(name), self._settings
        if peer.calls >= limits.max_peer_calls:
            rule = f"one peer may have {limits.max_peer_calls} calls under way"
            raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "calls", peer.calls, rule, _CALLS_END_S)
        if not peer.requests.units:
            rate = limits.max_peer_requests_s
            rule = f"one peer may make {rate} calls each second, and {rate * BURST_S} at once"
            wait = peer.requests.enough_at(1) - peer.requests.as_of
            raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "requests", f"more than {rate}/s", rule, wait)
        peer.requests.consume(1)
        peer.calls += 1
        try:
            yield
        finally:
            peer.calls -= 1

    async def pace(self, name: str, items: int) -> None:
        """Counts items that were read from a peer's stream; waits until the next ones may be read."""
        bucket = self._peer(name).items
        bucket.consume(items)
        if bucket.level < 0.0:
            await anyio.sleep(-bucket.level / bucket.limits.per_second)

    @asynccontextmanager
    async def transfer(self, name: str) -> AsyncIterator[None]:
        """Waits until a peer may put or get another payload. For use within `call`."""
        async with self._peer(name).transfers:
            yield

    @asynccontextmanager
    async def question(self, name: str) -> AsyncIterator[None]:
        """Waits until a peer may have another long answer, which is one at a time. For use within `call`."""
        async with self._peer(name).questions:
            yield

    def _peer(self, name: str) -> _Peer:
        now = self._now()
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(
                _bucket(self._settings.max_peer_requests_s, now), _bucket(self._settings.max_peer_items_s, now)
            )
            self._forget_one()
        self._peers.move_to_end(name)
        peer.requests.refill(now)
        peer.items.refill(now)
        return peer

    def _forget_one(self) -> None:
        if len(self._peers) > MAX_PEERS:
            idle = next((name for name, peer in self._peers.items() if not peer.calls), None)
            if idle is not None:
                del self._peers[idle]


def _bucket(per_second: int, now: float) -> TokenBucket:
    limits = QuotaDescription(float(per_second), per_second * BURST_S)
    return TokenBucket(limits, float(limits.burst), now)


def peer_of(context: Context) -> str:
    """Returns the peer that a call counts for: its token, else the address it came from."""
    return caller().token_id or address_of(context.peer())


class LimitingInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of a peer that makes too many. To ask for health is for all; who watches it holds a call."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wraps the handlers of all methods that cost more than their answer."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or (method in OPEN_TO_ALL and method != _WATCH):
            return handler  # type: ignore[no-any-return]
        for kind, make in _KINDS.items():
            serve = getattr(handler, kind, None)
            if serve is not None:
                wrap = self._answering if inspect.iscoroutinefunction(serve) else self._yielding
                return make(wrap(serve), handler.request_deserializer, handler.response_serializer)
        return handler  # type: ignore[no-any-return]

    def _answering(self, serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        # Its refusal is answered by the interceptor around it.
        async def serve_counted(request: Any, context: Context) -> Any:
            with self._limits.call(peer_of(context)):
                return await serve(request, context)

        return serve_counted

    def _yielding(self, serve: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def serve_counted(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                with self._limits.call(peer_of(context)):
                    async for response in serve(request, context):
                        yield response
            except RefusedError as refusal:
                await abort(context, refusal)

        return serve_counted
