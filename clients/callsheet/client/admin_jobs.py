"""What operators do with jobs: list them, and give up unfinished work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callsheet.client.channel import answer_of, open_channel
from callsheet.client.decode_jobs import decode_job_status
from callsheet.client.settings import ClientOptions
from callsheet.client.status import JobStatus
from callsheet.v1 import client_service_pb2, client_service_pb2_grpc


async def list_jobs(target: str, options: ClientOptions | None = None) -> tuple[JobStatus, ...]:
    """Returns the open jobs, in the order in which they were opened.

    Args:
        target: Address of the scheduler.
        options: Those of the connection.

    Raises:
        RefusedError: The scheduler refused the request or cannot be reached.
    """
    options = options or ClientOptions()
    async with open_channel(target, options) as channel:
        rpc = client_service_pb2_grpc.ClientServiceStub(channel).ListJobs
        response = await _answer(rpc, client_service_pb2.ListJobsRequest(), options)
    return tuple(map(decode_job_status, response.jobs))


async def cancel_work(
    target: str,
    job_id: str,
    *,
    group_id: str = "",
    trajectory_id: str = "",
    reason: str = "",
    options: ClientOptions | None = None,
) -> None:
    """Gives up what is unfinished in a job, or in one group or trajectory of it. The job stays open.

    Args:
        target: Address of the scheduler.
        job_id: The job.
        group_id: A group of it.
        trajectory_id: A trajectory of it; excludes `group_id`.
        reason: Why, for outcomes; at most 256 characters.
        options: Those of the connection.

    Raises:
        NotFoundError: There is none.
        RefusedError: The scheduler refused the request or cannot be reached.
    """
    options = options or ClientOptions()
    request = client_service_pb2.CancelWorkRequest(
        job_id=job_id, group_id=group_id, trajectory_id=trajectory_id, reason=reason
    )
    async with open_channel(target, options) as channel:
        await _answer(client_service_pb2_grpc.ClientServiceStub(channel).CancelWork, request, options)


async def _answer(rpc: Callable[..., Any], request: Any, options: ClientOptions) -> Any:
    return await answer_of(rpc(request, timeout=options.call_timeout_s))
