"""The rpcs of the faulty service, on a loopback port."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from callsheet.v1 import (
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    payload_service_pb2,
    payload_service_pb2_grpc,
)
from callsheet.v1.contract import OLDEST_CONTRACT

from tests.support.faulty_client_service import FaultyClientService
from tests.support.faulty_jobs import Status, not_found


class _ClientServicer(client_service_pb2_grpc.ClientServiceServicer):
    def __init__(self, service: FaultyClientService) -> None:
        self._service = service

    async def ClientSession(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        async for response in self._service.serve_session(request_iterator, context):
            yield response

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return client_service_pb2.GetServerInfoResponse(
            version="test", contract=self._service.contract, oldest_contract=OLDEST_CONTRACT, epoch=1
        )

    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check_job(request.job_id, context)
        return client_service_pb2.ListJobsResponse(jobs=self._service.state.job_statuses(request))

    async def ListTrajectories(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check_job(request.job_id, context)
        found = self._service.state.trajectory_statuses(request)
        if request.trajectory_id and not found:
            await abort(context, not_found("trajectory_id", request.trajectory_id))
        page = found[: self._service.pages]
        return client_service_pb2.ListTrajectoriesResponse(trajectories=page, more=len(page) < len(found))

    async def ListGroups(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._check_job(request.job_id, context)
        found = self._service.state.group_statuses(request)
        if request.group_id and not found:
            await abort(context, not_found("group_id", request.group_id))
        page = found[: self._service.pages]
        return client_service_pb2.ListGroupsResponse(groups=page, more=len(page) < len(found))

    async def _check_job(self, job_id: str, context: Any) -> None:
        if job_id and job_id not in self._service.state.jobs:
            await abort(context, not_found("job_id", job_id))

    async def GetOutcome(self, request: Any, context: Any) -> Any:  # noqa: N802
        key = (request.key.job_id, request.key.action_id)
        if key not in self._service.actions:
            await abort(context, not_found("key.action_id", key[1]))
        return client_service_pb2.GetOutcomeResponse(outcome=self._service.outcomes.get(key))


class _PayloadServicer(payload_service_pb2_grpc.PayloadServiceServicer):
    def __init__(self, service: FaultyClientService) -> None:
        self._service = service

    async def PutPayload(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        content = b"".join([request.chunk async for request in request_iterator])
        await self._service.storing.wait()
        sha256 = hashlib.sha256(content).hexdigest()
        self._service.puts.append(sha256)
        self._service.payloads[sha256] = content
        reference = common_pb2.PayloadReference(sha256=sha256, size=len(content))
        return payload_service_pb2.PutPayloadResponse(reference=reference)

    async def GetPayload(self, request: Any, context: Any) -> Any:  # noqa: N802
        content = self._service.payloads.get(request.reference.sha256)
        if content is None:
            await abort(context, not_found("reference", request.reference.sha256))
            return
        for start in range(0, len(content), 1 << 20):
            yield payload_service_pb2.GetPayloadResponse(chunk=content[start : start + (1 << 20)])


async def abort(context: Any, status: Status) -> None:
    """Ends a unary call with a refusal, the way gRPC carries a google.rpc.Status."""
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, status.message)


@asynccontextmanager
async def serving(
    service: FaultyClientService,
    *,
    port: int = 0,
    admin: admin_service_pb2_grpc.AdminServiceServicer | None = None,
) -> AsyncIterator[str]:
    """Serves on a loopback port and yields "127.0.0.1:port"."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 23)))
    # Its other rpcs answer UNIMPLEMENTED; the stubs declare them abstract.
    client_servicer: Any = _ClientServicer
    client_service_pb2_grpc.add_ClientServiceServicer_to_server(client_servicer(service), server)
    payload_service_pb2_grpc.add_PayloadServiceServicer_to_server(_PayloadServicer(service), server)
    if admin is not None:
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(grace=None)
