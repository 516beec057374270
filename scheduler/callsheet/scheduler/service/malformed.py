"""Requests that are no messages, for instance text that is not UTF-8: gRPC's own answer to them is UNKNOWN."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from callsheet.scheduler.service.refusals import abort
from callsheet.scheduler.service.rules import invalid
from google.protobuf.message import DecodeError


class MalformedRequestRefuser(grpc.aio.ServerInterceptor):
    """Refuses them as INVALID_ARGUMENT in rpcs of one request; a stream of them ends with UNKNOWN."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of such an rpc."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # type: ignore[no-any-return]
        answer, parse = handler.unary_unary, handler.request_deserializer

        def parse_or_keep_error(data: bytes) -> Any:
            try:
                return parse(data)
            except DecodeError as error:
                return error

        async def answer_or_refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if isinstance(request, DecodeError):
                await abort(context, invalid("request", request, f"must be a message of {handler_call_details.method}"))
            return await answer(request, context)

        return grpc.unary_unary_rpc_method_handler(answer_or_refuse, parse_or_keep_error, handler.response_serializer)
