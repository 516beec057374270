"""Written by hand: the module `google.rpc.status_pb2`, or what it declares.

Where googleapis-common-protos is present its message is used, as one process may define a message only once; elsewhere
the three fields are declared here.
"""

from __future__ import annotations

try:
    from google.rpc.status_pb2 import DESCRIPTOR, Status
except ModuleNotFoundError:
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

    def _declare() -> descriptor_pb2.FileDescriptorProto:
        file = descriptor_pb2.FileDescriptorProto(
            name="google/rpc/status.proto",
            package="google.rpc",
            syntax="proto3",
            dependency=[any_pb2.DESCRIPTOR.name],
        )
        field = descriptor_pb2.FieldDescriptorProto
        message = file.message_type.add(name="Status")
        message.field.add(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
        message.field.add(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
        message.field.add(
            name="details",
            number=3,
            type=field.TYPE_MESSAGE,
            type_name=".google.protobuf.Any",
            label=field.LABEL_REPEATED,
        )
        return file

    _pool = descriptor_pool.Default()
    _pool.AddSerializedFile(_declare().SerializeToString())
    DESCRIPTOR = _pool.FindFileByName("google/rpc/status.proto")
    Status = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["Status"])

__all__ = ["DESCRIPTOR", "Status"]
