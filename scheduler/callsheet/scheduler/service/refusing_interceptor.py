"""What surrounds every rpc of ours: refusals become statuses, and sessions write bytes.

A request that is no message, for instance with text that is not UTF-8, is refused too: gRPC's own answer is UNKNOWN.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from callsheet.scheduler.core.refusals import RefusedError, invalid
from callsheet.scheduler.service.refusal_log import RefusalLog
from callsheet.scheduler.service.refusals import Context, abort, first_of
from google.protobuf.message import DecodeError

# These write messages that are encoded already; the generated code would encode them once more.
_WRITE_BYTES = frozenset({"/callsheet.v1.ClientService/ClientSession", "/callsheet.v1.ManagerService/ManagerSession"})


class RefusingInterceptor(grpc.aio.ServerInterceptor):
    """Ends rpcs with the refusals that their handlers raise. What came on a stream before has been taken."""

    def __init__(self, refusals: RefusalLog) -> None:
        self._refusals = refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps handlers that are coroutines: all but GetPayload, and reflection."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        for kind, wrap, make in _KINDS:
            serve = getattr(handler, kind, None)
            if serve is not None and inspect.iscoroutinefunction(serve):
                serialize = None if method in _WRITE_BYTES else handler.response_serializer
                return make(
                    wrap(serve, method, self._refusals), _parse_or_keep_error(handler.request_deserializer), serialize
                )
        return handler  # type: ignore[no-any-return]


def _parse_or_keep_error(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return error

    return parsed


def _message(request: Any, method: str) -> Any:
    """The request.

    Raises:
        RefusedError: It is none.
    """
    if isinstance(request, DecodeError):
        raise invalid("request", request, f"must be a message of {method}")
    return request


def _answer_messages(
    answer: Callable[..., Awaitable[Any]], method: str, refusals: RefusalLog
) -> Callable[..., Awaitable[Any]]:
    # Only an answer of one message is returned; a stream of them is written, as that of who watches health.
    async def answer_or_refuse(request: Any, context: Context) -> Any:
        try:
            return await answer(_message(request, method), context)
        except RefusedError as refusal:
            refusals.count(refusal.code)
            await abort(context, refusal)

    return answer_or_refuse


def _stream_messages(
    serve: Callable[..., Awaitable[Any]], method: str, refusals: RefusalLog
) -> Callable[..., Awaitable[Any]]:
    async def serve_or_refuse(requests: AsyncIterator[Any], context: Context) -> Any:
        async def messages() -> AsyncGenerator[Any, None]:
            async for request in requests:
                yield _message(request, method)

        try:
            async with aclosing(messages()) as parsed:
                return await serve(parsed, context)
        except* RefusedError as group:
            refusal = first_of(group)
        refusals.count(refusal.code)
        refusals.warn("stream_refused", context.peer(), method=method, reason=str(refusal))
        return await abort(context, refusal)

    return serve_or_refuse


_KINDS = (
    ("unary_unary", _answer_messages, grpc.unary_unary_rpc_method_handler),
    ("unary_stream", _answer_messages, grpc.unary_stream_rpc_method_handler),
    ("stream_unary", _stream_messages, grpc.stream_unary_rpc_method_handler),
    ("stream_stream", _stream_messages, grpc.stream_stream_rpc_method_handler),
)
