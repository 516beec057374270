"""First part of several views: the jobs that a viewer sees, and their oldest open actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from callsheet.client.errors import NotFoundError
from callsheet.dashboard.viewer import JOB_SCOPE, Asked
from callsheet.v1 import admin_service_pb2, client_service_pb2, job_pb2

_OPEN: Final = ("queued", "dispatched", "running")
_MOST_JOBS: Final = 20
_OLDEST: Final = 25


@dataclass(frozen=True, slots=True)
class Seen:
    """Jobs that a viewer sees at first; `status` is None for a token of one job."""

    jobs: Sequence[job_pb2.JobStatus]
    status: admin_service_pb2.GetStatusResponse | None = None


@dataclass(frozen=True, slots=True)
class OldestActions:
    """The oldest open actions of the busiest jobs, as ListActions tells them, and how many more there are."""

    actions: Sequence[admin_service_pb2.ExplainResponse]
    left_out: int = 0


async def seen(asked: Asked) -> Seen:
    """Returns the jobs that a viewer sees, with managers and nodes for those who see all jobs."""
    if asked.viewer.scope == JOB_SCOPE:
        return Seen((await asked.source.list_jobs(client_service_pb2.ListJobsRequest())).jobs)
    status = await asked.source.get_status(admin_service_pb2.GetStatusRequest())
    return Seen(status.jobs, status)


async def oldest_actions(asked: Asked, jobs: Iterable[job_pb2.JobStatus]) -> OldestActions:
    """Returns the oldest open actions of jobs, those with the most of them first."""
    busy = sorted((job for job in jobs if open_actions(job)), key=open_actions, reverse=True)
    found: list[admin_service_pb2.ExplainResponse] = []

    async def ask(job: job_pb2.JobStatus) -> None:
        request = admin_service_pb2.ListActionsRequest(job_id=job.spec.job_id, page_size=_OLDEST)
        try:
            found.extend((await asked.source.list_actions(request)).actions)
        except NotFoundError:
            return  # It was closed since.

    async with anyio.create_task_group() as tasks:
        for job in busy[:_MOST_JOBS]:
            tasks.start_soon(ask, job)
    return OldestActions(found, max(sum(map(open_actions, busy)) - len(found), 0))


def open_actions(job: job_pb2.JobStatus) -> int:
    """Returns how many actions of a job have no outcome yet."""
    return sum(job.actions.get(state, 0) for state in _OPEN)
