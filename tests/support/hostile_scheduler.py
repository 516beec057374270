"""A scheduler all of whose answers have orders to a terminal in every text, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from callsheet.v1 import admin_service_pb2, client_service_pb2, common_pb2
from callsheet.v1.google_rpc import status_pb2
from google.protobuf import any_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

ORDERS = (
    "\x1b]0;owned\x07",  # sets the title
    "\x1b]52;c;ZXZpbA==\x1b\\",  # sets the clipboard
    "\x1b[2J\x1b[1;1H",  # clears the screen
    "\x9b31m",  # the same in one byte
    "\x85",
    "\r\x08\x08\x0b\x0c\x00\x7f",
    "\u202egnp.exe\u2066\u2069\u2028",
    "[link=http://evil.example]here[/link] [/red] [bold]",  # markup of rich
)
HOSTILE = "".join(ORDERS) + "\n\tend"

_TEXTS = {FieldDescriptor.TYPE_STRING: HOSTILE, FieldDescriptor.TYPE_BYTES: HOSTILE.encode()}


def fill(message: Any, *chosen: str) -> Any:
    """Fills every field of a message: texts are hostile, numbers 1; of a oneof the chosen field, else the last."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field.name not in chosen and any(each.name in chosen for each in oneof.fields):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(value, field.message_type)
        elif isinstance(value, Message):
            value.SetInParent()
            fill(value, *chosen)
        elif field.message_type is not None:
            fill(value.add(), *chosen)
        elif hasattr(value, "append"):
            value.append(_TEXTS.get(field.type, 1))
        else:
            setattr(message, field.name, _TEXTS.get(field.type, 1))
    return message


def _fill_map(values: Any, entry: Any) -> None:
    key, value = entry.fields
    name = _TEXTS.get(key.type, 1)
    if value.message_type is not None:
        fill(values[name])
    else:
        values[name] = _TEXTS.get(value.type, 1)


@contextmanager
def hostile_scheduler(refuses: grpc.StatusCode | None = None) -> Iterator[str]:
    """Yields its address.

    Args:
        refuses: Answer with this code and hostile details.
    """
    server = grpc.server(ThreadPoolExecutor(4))
    for module in (client_service_pb2, admin_service_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            handlers = {
                method.name: _handler(method, refuses) for method in service.methods if not method.client_streaming
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _handler(method: Any, refuses: grpc.StatusCode | None) -> grpc.RpcMethodHandler[Any, Any]:
    asked, answered = map(message_factory.GetMessageClass, (method.input_type, method.output_type))

    def answer(_: Any, context: grpc.ServicerContext) -> Any:
        if refuses is None:
            return fill(answered())
        packed = any_pb2.Any()
        packed.Pack(fill(common_pb2.ErrorDetail()))
        status = status_pb2.Status(code=refuses.value[0], message=HOSTILE, details=[packed])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        return context.abort(refuses, HOSTILE)

    return grpc.unary_unary_rpc_method_handler(answer, asked.FromString, answered.SerializeToString)
