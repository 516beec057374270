"""The guard of every rpc: its caller's token, and the right to call it."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import anyio
import grpc
import grpc.aio
import structlog
from callsheet.scheduler.access.identity import ANYBODY, Identity, Scope, unauthenticated
from callsheet.scheduler.access.methods import OPEN_TO_ALL, SCOPES
from callsheet.scheduler.access.token_file import TokenFile, TokenFileError
from callsheet.scheduler.access.tokens import check_valid, identify, reserved_services
from callsheet.scheduler.core.words.engine_weights import PublishRight
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec.refusal_status import Context, abort, first_of
from callsheet.scheduler.service.limits.refusal_log import RefusalLog

_log = structlog.get_logger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

RECHECK_S: Final = 2.0
"""How long a stream may live on once its token was revoked or has expired."""

_SCHEME: Final = "Bearer "
_caller: ContextVar[Identity] = ContextVar("caller", default=ANYBODY)
_check_caller: ContextVar[Callable[[str], None]] = ContextVar("check_caller", default=lambda _: None)
_reserved: ContextVar[Callable[[], frozenset[str]]] = ContextVar("reserved", default=frozenset)
_WAITING: Final = frozenset(f"/callsheet.v1.ClientService/{rpc}" for rpc in ("GetOutcome", "TakeBatch"))
_LASTING: Final[dict[str, Callable[..., Handler]]] = {
    "stream_stream": grpc.stream_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "unary_unary": grpc.unary_unary_rpc_method_handler,
}


def caller() -> Identity:
    """Returns the caller of the rpc that is being served."""
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
    """Returns the services for which the caller may publish weights; None for all services."""
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
        """Returns a handler that checks the token again if the call may last."""
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
        """Returns a handler that answers with the refusal, and reports it if the caller is known.

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
