"""Wraps every rpc of ours: refusals become statuses, messages are counted, and sessions write bytes.

A request that is no message, for instance with text that is not UTF-8, is refused too: gRPC's own answer is UNKNOWN.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import structlog
from callsheet.scheduler.core.words.refusals import RefusedError, invalid
from callsheet.scheduler.service.codec.refusal_status import Context, abort, first_of
from callsheet.scheduler.service.limits.refusal_log import RefusalLog
from google.protobuf.message import DecodeError

_log = structlog.get_logger(__name__)
# These write messages that are encoded already; the generated code would encode them once more.
_WRITE_BYTES = frozenset({"/callsheet.v1.ClientService/ClientSession", "/callsheet.v1.ManagerService/ManagerSession"})


class RefusingInterceptor(grpc.aio.ServerInterceptor):
    """Ends rpcs with the refusals that their handlers raise. What came on a stream before has been taken."""

    def __init__(self, refusals: RefusalLog, messages: Counter[tuple[str, str]]) -> None:
        self._refusals = refusals
        self._messages = messages

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps all handlers: coroutines, and the generators of GetPayload and of reflection."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        for kind, wrap, make in _KINDS:
            serve = getattr(handler, kind, None)
            if serve is not None:
                rpc = method.rpartition("/")[2]
                parse = _counted(_parse_or_keep_error(handler.request_deserializer), self._messages, (rpc, "read"))
                encode = bytes if method in _WRITE_BYTES else handler.response_serializer
                wrapped = (_yield_messages if inspect.isasyncgenfunction(serve) else wrap)(
                    serve, method, self._refusals
                )
                return make(wrapped, parse, _counted(encode, self._messages, (rpc, "written")))
        return handler  # type: ignore[no-any-return]


def _counted(
    convert: Callable[[Any], Any], messages: Counter[tuple[str, str]], labels: tuple[str, str]
) -> Callable[[Any], Any]:
    def convert_and_count(message: Any) -> Any:
        messages[labels] += 1
        return convert(message)

    return convert_and_count


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
        except Exception as error:
            await _end(context, error, method, refusals)

    return answer_or_refuse


def _yield_messages(
    serve: Callable[..., AsyncGenerator[Any, None]], method: str, refusals: RefusalLog
) -> Callable[..., AsyncIterator[Any]]:
    async def serve_or_refuse(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            is_stream = isinstance(request, AsyncIterator)
            parsed = _messages(request, method) if is_stream else _message(request, method)
            async with aclosing(serve(parsed, context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _end(context, error, method, refusals)

    return serve_or_refuse


def _stream_messages(
    serve: Callable[..., Awaitable[Any]], method: str, refusals: RefusalLog
) -> Callable[..., Awaitable[Any]]:
    async def serve_or_refuse(requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            async with aclosing(_messages(requests, method)) as parsed:
                return await serve(parsed, context)
        except (Exception, BaseExceptionGroup) as error:
            await _end(context, error, method, refusals, is_stream=True)

    return serve_or_refuse


async def _messages(requests: AsyncIterator[Any], method: str) -> AsyncGenerator[Any, None]:
    async for request in requests:
        yield _message(request, method)


async def _end(
    context: Context, error: BaseException, method: str, refusals: RefusalLog, *, is_stream: bool = False
) -> None:
    """Ends an rpc with its handler's error: gRPC's own answer to most is UNKNOWN, and a traceback in the log."""
    if isinstance(error, BaseExceptionGroup):
        error = first_of(error.subgroup(RefusedError) or error)
    if isinstance(error, RefusedError):
        refusals.count(error.code)
        if is_stream:
            refusals.warn("stream_refused", context.peer(), method=method, reason=str(error))
        await abort(context, error)
    if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
        # It was cancelled or answered already, which gRPC knows by the type.
        raise error from None
    if context.done() or isinstance(error, grpc.aio.UsageError | grpc.aio.InternalError):
        _log.info("rpc_cut", method=method, reason=repr(error))
        raise asyncio.CancelledError from None
    at = traceback.extract_tb(error.__traceback__)[-1]
    _log.error("rpc_broke", method=method, reason=repr(error), at=f"{at.filename}:{at.lineno}")
    await context.abort(grpc.StatusCode.INTERNAL, "the scheduler failed; its log says why")


_KINDS = (
    ("unary_unary", _answer_messages, grpc.unary_unary_rpc_method_handler),
    ("unary_stream", _answer_messages, grpc.unary_stream_rpc_method_handler),
    ("stream_unary", _stream_messages, grpc.stream_unary_rpc_method_handler),
    ("stream_stream", _stream_messages, grpc.stream_stream_rpc_method_handler),
)
