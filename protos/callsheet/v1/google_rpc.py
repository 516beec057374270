"""`google.rpc.Status` for the generated code, whether or not googleapis-common-protos is installed.

The base install depends on grpcio, protobuf and anyio alone. Where googleapis-common-protos is present its module is
used, as one process may define a message only once; elsewhere the three fields are declared here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.rpc import status_pb2
else:
    try:
        from google.rpc import status_pb2
    except ModuleNotFoundError:
        import types

        from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

        def _declare_status() -> types.SimpleNamespace:
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
            pool = descriptor_pool.Default()
            pool.AddSerializedFile(file.SerializeToString())
            descriptor = pool.FindMessageTypeByName("google.rpc.Status")
            return types.SimpleNamespace(
                DESCRIPTOR=descriptor.file, Status=message_factory.GetMessageClass(descriptor)
            )

        status_pb2 = _declare_status()

__all__ = ["status_pb2"]
