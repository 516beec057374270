"""`google.rpc.Status` for the generated code, whether or not googleapis-common-protos is installed.

The base install depends on grpcio, protobuf and anyio alone, so `google.rpc` may be missing. The generated code
therefore imports it from here (scripts/generate_protos.py rewrites the imports), and `status_pb2.pyi`, generated from
protos/google/rpc/status.proto, types it.
"""
