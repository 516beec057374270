"""What operators do with jobs: list them, and give up unfinished work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from callsheet.client.channel import answer_of, open_channel
from callsheet.client.settings import ClientOptions
from callsheet.v1 import client_service_pb2, client_service_pb2_grpc, job_pb2


@dataclass(frozen=True, slots=True)
class JobSummary:
    """An open job.

    Attributes:
        job_id: Its id.
        sessions: Client sessions that hold it now.
        open_trajectories: Open trajectories.
        waiting_trajectories: Those of them that have actions and were not let begin yet.
        actions: Actions by state.
        failures: Failed actions by kind.
        policy_version: The newest published policy version.
        expires_in_s: Seconds until it expires; None while it is held, and where it cannot expire.
        expired: Whether it has expired.
        closes_in_s: Seconds until an expired job is closed; None otherwise.
        detached: Whether it needs no session.
    """

    job_id: str
    sessions: int = 0
    open_trajectories: int = 0
    waiting_trajectories: int = 0
    actions: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    policy_version: int = 0
    expires_in_s: float | None = None
    expired: bool = False
    closes_in_s: float | None = None
    detached: bool = False


async def list_jobs(target: str, options: ClientOptions | None = None) -> tuple[JobSummary, ...]:
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
    return tuple(map(summarise, response.jobs))


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


def summarise(status: job_pb2.JobStatus) -> JobSummary:
    """Translates what the scheduler tells of a job."""
    return JobSummary(
        job_id=status.spec.job_id,
        sessions=status.sessions,
        open_trajectories=status.open_trajectories,
        waiting_trajectories=status.waiting_trajectories,
        actions=dict(status.actions),
        failures=dict(status.failures),
        policy_version=status.policy_version,
        expires_in_s=_seconds(status, "expires_in"),
        expired=status.expired,
        closes_in_s=_seconds(status, "closes_in"),
        detached=status.spec.detached,
    )


async def _answer(rpc: Callable[..., Any], request: Any, options: ClientOptions) -> Any:
    return await answer_of(rpc(request, timeout=options.call_timeout_s))


def _seconds(status: job_pb2.JobStatus, name: str) -> float | None:
    if not status.HasField(name):  # type: ignore[arg-type]
        return None
    duration = getattr(status, name)
    return float(duration.seconds + duration.nanos / 1e9)
