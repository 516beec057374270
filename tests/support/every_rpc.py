"""Calls of every rpc of the contract, from its descriptors: of what is a victim's, and what each of them got."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
from callsheet.v1 import (
    admin_service_pb2,
    client_service_pb2,
    common_pb2,
    manager_service_pb2,
    payload_service_pb2,
)
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

CALL_S = 30.0
# gRPC tells a write to a call that was refused meanwhile as INTERNAL.
_TRIES = 20
JOB = "victim"
MANAGER = "victim-manager"
_NAMES = {"job_id": JOB, "action_id": "a", "trajectory_id": "t", "manager_id": MANAGER, "close_job": JOB,
          "hold_job": JOB, "release_job": JOB}  # fmt: skip
_WITH_NAMES = {"job", "action", "trajectory", "key"}
_OURS = (client_service_pb2, admin_service_pb2, manager_service_pb2, payload_service_pb2)
_OPEN = (health_pb2, reflection_pb2)


def rpcs(modules: Sequence[Any] = _OURS) -> list[Any]:
    """The rpcs of the contract, from its descriptors."""
    return [
        method
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def path_of(method: Any) -> str:
    """Its name on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def open_rpcs() -> list[Any]:
    """Health and reflection."""
    return rpcs(_OPEN)


def requests_of(method: Any, payload: common_pb2.PayloadReference) -> Iterator[Any]:
    """Requests about what is the victim's; of a stream of alternatives one request for each."""
    made = message_factory.GetMessageClass(method.input_type)()
    if method.name == "ClientSession":
        for field in client_service_pb2.ClientItem.DESCRIPTOR.oneofs_by_name["item"].fields:
            item = client_service_pb2.ClientItem(sequence=1)
            if field.message_type is None:
                setattr(item, field.name, _NAMES[field.name])
            else:
                getattr(item, field.name).SetInParent()
                _name_victim(getattr(item, field.name))
            yield client_service_pb2.ClientSessionRequest(items=[item])
    elif method.name == "ManagerSession":
        registration = manager_service_pb2.Registration(manager_id=MANAGER, incarnation="another")
        yield manager_service_pb2.ManagerSessionRequest(
            items=[manager_service_pb2.ManagerItem(registration=registration)]
        )
    elif method.name == "GetPayload":
        yield payload_service_pb2.GetPayloadRequest(reference=payload)
    else:
        _name_victim(made)
        yield made


def _name_victim(message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in _NAMES and isinstance(value, str):
            setattr(message, field.name, _NAMES[field.name])
        elif field.name in _WITH_NAMES and field.containing_oneof is None and field.message_type is not None:
            value.SetInParent()
            _name_victim(value)


async def code_of(
    channel: grpc.aio.Channel, method: Any, request: Any, metadata: tuple[tuple[str, str], ...]
) -> tuple[grpc.StatusCode, str]:
    """What a call got: its code, and the first answer or the details of the refusal.

    Of a session whose item was refused it is what the item got.
    """
    for _ in range(_TRIES):
        code, said = await _code_of(channel, method, request, metadata)
        if code is not grpc.StatusCode.INTERNAL or not method.client_streaming:
            break
    return code, said


async def _code_of(
    channel: grpc.aio.Channel, method: Any, request: Any, metadata: tuple[tuple[str, str], ...]
) -> tuple[grpc.StatusCode, str]:
    try:
        async for answer in _call(channel, method, request, metadata):
            if results := getattr(answer, "results", ()):
                code = next(code for code in grpc.StatusCode if code.value[0] == results[0].status.code)
                return code, results[0].status.message
            return grpc.StatusCode.OK, str(answer)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def _call(
    channel: grpc.aio.Channel, method: Any, request: Any, metadata: tuple[tuple[str, str], ...]
) -> AsyncIterator[Any]:
    reads = message_factory.GetMessageClass(method.output_type).FromString
    writes = message_factory.GetMessageClass(method.input_type).SerializeToString
    sends, gets = method.client_streaming, method.server_streaming
    arity = f"{'stream' if sends else 'unary'}_{'stream' if gets else 'unary'}"
    make: Any = getattr(channel, arity)
    call = make(path_of(method), writes, reads)(
        iter([request]) if sends else request, metadata=metadata, timeout=CALL_S
    )
    if gets:
        async for answer in call:
            yield answer
    else:
        yield await call
