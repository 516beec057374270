"""Sessions write messages that are encoded already; the generated code would encode them once more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from callsheet.v1 import client_service_pb2, manager_service_pb2

_SESSIONS = frozenset(
    f"/{module.DESCRIPTOR.services_by_name[service].full_name}/{method}"
    for module, service, method in (
        (client_service_pb2, "ClientService", "ClientSession"),
        (manager_service_pb2, "ManagerService", "ManagerSession"),
    )
)


class EncodedSessions(grpc.aio.ServerInterceptor):
    """Lets the bytes that the two sessions write go out as they are."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Takes the serializer of responses away from the handlers of sessions."""
        handler: Any = await continuation(handler_call_details)
        if handler_call_details.method not in _SESSIONS:
            return handler  # type: ignore[no-any-return]
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream, handler.request_deserializer, None)
