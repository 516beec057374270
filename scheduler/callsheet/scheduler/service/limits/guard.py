"""The guard of every rpc: a token, the rate of its peer, and refusals in the log."""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import grpc
import grpc.aio
import structlog
from callsheet.scheduler.access.identity import ANYBODY, OPEN_TO_ALL, SCOPES, Identity, Scope, unauthenticated
from callsheet.scheduler.access.tokens import (
    TokenFile,
    TokenFileError,
    check_valid,
    identify,
    reserved_services,
)
from callsheet.scheduler.core.state.ledger import TokenBucket
from callsheet.scheduler.core.words.engine_weights import PublishRight
from callsheet.scheduler.core.words.model import RefusalCode, RefusedError
from callsheet.scheduler.core.words.registration import QuotaDescription
from callsheet.scheduler.service.codec.rules import Context, abort, first_of
from callsheet.scheduler.service.limits.settings import LimitSettings

# Refused calls in the log: some lines for each peer, however many calls it makes.

INTERVAL_S: Final = 10.0
"""After a line about a peer, its next refusals are counted for so long, and told with the line after that."""

MAX_PEERS_TOLD: Final = 1_000
"""Peers of which is remembered when a line told of them."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Told:
    at: float
    not_told: int = 0


class RefusalLog:
    """Warns of refusals. Not for several threads."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        count: Callable[[RefusalCode], None] = lambda code: None,
    ) -> None:
        """Remembers nothing yet.

        Args:
            now: A clock that never goes back.
            count: Told the code of each refused rpc.
        """
        self.count = count
        self._now = now
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def warn(self, event: str, peer: str, **facts: str) -> None:
        """Logs a refusal, with how many there were that were only counted; or counts it.

        Args:
            event: Of the log line.
            peer: Who was refused, as gRPC names it.
            facts: Of the log line.
        """
        key, now = (event, address_of(peer)), self._now()
        told = self._told.get(key)
        if told is not None and now - told.at < INTERVAL_S:
            told.not_told += 1
            return
        more = {"not_told": told.not_told} if told is not None and told.not_told else {}
        _log.warning(event, peer=peer, **facts, **more)
        self._told[key] = _Told(now)
        self._told.move_to_end(key)
        if len(self._told) > MAX_PEERS_TOLD:
            self._told.popitem(last=False)


def address_of(peer: str) -> str:
    """The address of a peer as gRPC names it, without the port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

RECHECK_S: Final = 2.0
"""How long a stream may live on once its token was revoked or has expired."""

_SCHEME: Final = "Bearer "
_caller: ContextVar[Identity] = ContextVar("caller", default=ANYBODY)
_check_caller: ContextVar[Callable[[str], None]] = ContextVar("check_caller", default=lambda _: None)
_reserved: ContextVar[Callable[[], frozenset[str]]] = ContextVar("reserved", default=frozenset)


def caller() -> Identity:
    """Who makes the rpc that is being served."""
    return _caller.get()


def check_caller(token_id: str = "") -> None:
    """Looks at the caller's token again; an rpc that has waited asks before it gives anything away.

    Args:
        token_id: The public part of another token, which is looked at instead.

    Raises:
        RefusedError: UNAUTHENTICATED: the token was revoked or has expired meanwhile.
    """
    _check_caller.get()(token_id)


def publish_right() -> PublishRight | None:
    """What the caller may publish weights for; None for all services."""
    identity = _caller.get()
    return PublishRight(identity.publishes, _reserved.get()()) if identity.scope is Scope.JOB else None


class TokenGuard(grpc.aio.ServerInterceptor):
    """Refuses who has no token that a file knows, or one for something else; a stream ends when its token does."""

    def __init__(
        self,
        tokens: TokenFile,
        refusals: RefusalLog,
        now: Callable[[], float] = time.time,
        on_denied: Callable[[Identity, str, str, RefusedError], None] = lambda identity, peer, method, refusal: None,
    ) -> None:
        self._tokens = tokens
        self._on_denied = on_denied
        self._refusals = refusals
        self._now = now
        self._tell_if_empty()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Lets an rpc through, or answers it with the refusal."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method in OPEN_TO_ALL:
            return handler  # type: ignore[no-any-return]
        identity: Identity | None = None
        try:
            identity = self._identify(handler_call_details)
            identity.require(SCOPES.get(method, frozenset()), method)
        except RefusedError as refusal:
            return self._refusing(method, refusal, identity)
        # Interceptors and handler of an rpc run in one task, and so in one context.
        _caller.set(identity)
        _check_caller.set(lambda token_id: self._check_again(token_id or identity.token_id))
        _reserved.set(lambda: reserved_services(self._records(), self._now()))
        return self._guarded(identity, handler, method)

    def _guarded(self, identity: Identity, handler: Any, method: str) -> Handler:
        """A handler that looks at the token again, where a call may last."""
        codecs = handler.request_deserializer, handler.response_serializer
        if handler.unary_stream is not None and inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(
                self._chunks_while_valid(identity, handler.unary_stream), *codecs
            )
        for kind, make in _LASTING.items():
            serve = getattr(handler, kind)
            # Those that yield, as reflection does, are over soon; so is one answer, unless it is waited for.
            if inspect.iscoroutinefunction(serve) and (kind != "unary_unary" or method in _WAITING):
                return make(self._while_valid(identity, serve), *codecs)
        return handler  # type: ignore[no-any-return]

    def _identify(self, details: grpc.HandlerCallDetails) -> Identity:
        presented = next((str(value) for key, value in details.invocation_metadata or () if key == "authorization"), "")
        if not presented.startswith(_SCHEME):
            raise unauthenticated("must be a token: set CALLSHEET_TOKEN or CALLSHEET_TOKEN_FILE")
        return identify(presented.removeprefix(_SCHEME), self._records(), self._now())

    def _tell_if_empty(self) -> None:
        try:
            if not self._tokens.records():
                hint = f"callsheet token issue admin --tokens {self._tokens.path}"
                _log.warning("no_tokens", reason="nobody has a token yet", make_one=hint)
        except TokenFileError as error:
            _log.error("tokens_unreadable", reason=str(error))

    def _records(self) -> Any:
        try:
            return self._tokens.records()
        except TokenFileError as error:
            _log.error("tokens_unreadable", reason=str(error))
            rule = "cannot be checked now; try again"
            raise RefusedError(RefusalCode.UNAVAILABLE, "authorization", "", rule, retry_after=1.0) from error

    def _check_again(self, token_id: str) -> None:
        try:
            records = self._tokens.records()
        except TokenFileError as error:
            # Nobody new is let in meanwhile; who is in was right.
            _log.error("tokens_unreadable", reason=str(error))
        else:
            check_valid(records.get(token_id), self._now())

    def _while_valid(self, identity: Identity, serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def recheck() -> None:
            while True:
                await anyio.sleep(RECHECK_S)
                self._check_again(identity.token_id)

        async def serve_while_valid(requests: Any, context: Context) -> Any:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(recheck)
                    answer = await serve(requests, context)
                    tasks.cancel_scope.cancel()
                return answer
            except BaseExceptionGroup as group:
                error = first_of(group)
                if not isinstance(error, RefusedError):
                    # An rpc that was answered already, among others, which gRPC knows by the type.
                    raise error from None
                await self._end(identity, error, context)

        return serve_while_valid

    def _chunks_while_valid(
        self, identity: Identity, serve: Callable[..., AsyncGenerator[Any, None]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def serve_while_valid(request: Any, context: Context) -> AsyncIterator[Any]:
            checked_at = anyio.current_time()
            async with aclosing(serve(request, context)) as chunks:
                async for chunk in chunks:
                    if anyio.current_time() >= checked_at + RECHECK_S:
                        checked_at = anyio.current_time()
                        try:
                            self._check_again(identity.token_id)
                        except RefusedError as error:
                            await self._end(identity, error, context)
                    yield chunk

        return serve_while_valid

    async def _end(self, identity: Identity, refusal: RefusedError, context: Context) -> None:
        _log.warning("stream_ended", token=identity.token_id, reason=refusal.rule)
        await abort(context, refusal)

    def _refusing(self, method: str, refusal: RefusedError, identity: Identity | None) -> Handler:
        """A handler that answers with the refusal, and tells of it where the caller is known.

        It is one of a stream whatever the method is: for others gRPC would take in a whole request first, and whoever
        sends many by halves would have them all kept.
        """

        async def refuse(_: Any, context: Context) -> None:
            self._refusals.count(refusal.code)
            if identity is not None:
                self._on_denied(identity, context.peer(), method, refusal)
            self._refusals.warn("call_refused", context.peer(), method=method, reason=refusal.rule)
            await abort(context, refusal)

        return grpc.stream_stream_rpc_method_handler(refuse)


_WAITING: Final = frozenset(f"/callsheet.v1.ClientService/{rpc}" for rpc in ("GetOutcome", "TakeBatch"))
_LASTING: Final[dict[str, Callable[..., Handler]]] = {
    "stream_stream": grpc.stream_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "unary_unary": grpc.unary_unary_rpc_method_handler,
}


# How many calls, and items on streams, one peer may make: a token where tokens are asked for, else an address.

MAX_PEERS: Final = 10_000
"""Peers of which is remembered what they did lately; whoever did nothing for longest is forgotten."""

BURST_S: Final = 4
"""Seconds of its rate that a peer may spend at once."""

MAX_TRANSFERS: Final = 16
"""Payloads that one peer puts and gets at once. One takes a file, and 6 MiB while its reader is slow; others wait."""

_CALLS_END_S: Final = 1.0
_WATCH: Final = "/grpc.health.v1.Health/Watch"


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
    """Whom a call is counted for: the token it came with, else the address it came from."""
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


_KINDS: Final[dict[str, Callable[..., Handler]]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}
