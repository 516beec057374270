"""Lists of jobs, trajectories and groups, read from the core between two of its steps and answered page by page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

import anyio.to_thread
from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.work.over_or_unknown import unknown_group, unknown_trajectory
from callsheet.scheduler.service.codec.buffer_answers import DEFAULT_PAGE, MAX_PAGE
from callsheet.scheduler.service.codec.status_answers import group_status, job_status, trajectory_status
from callsheet.scheduler.service.turns import in_turns, made_of
from callsheet.v1 import client_service_pb2, job_pb2
from callsheet.v1.rules.fields import within

MOST_ON_LOOP = 10_000
"""Ids that are sorted on the loop, in a millisecond or two; more are sorted beside it."""


async def list_jobs(
    state: SchedulerState, request: client_service_pb2.ListJobsRequest, now: float, sees: Callable[[str], bool]
) -> client_service_pb2.ListJobsResponse:
    """Returns the open jobs that the caller sees, or the one that is asked for.

    Raises:
        RefusedError: NOT_FOUND if that one is not open.
    """
    jobs = [open_job(state, request.job_id)] if request.job_id else state.jobs.values()
    jobs = [job for job in jobs if sees(job.request.job_id)]
    told = await in_turns(made_of(jobs, lambda job: job_status(state, job, now)))
    return client_service_pb2.ListJobsResponse(jobs=told)


async def list_trajectories(
    state: SchedulerState, request: client_service_pb2.ListTrajectoriesRequest, now: float
) -> client_service_pb2.ListTrajectoriesResponse:
    """Returns a page of a job's trajectories, or the one that is asked for, which may be closed.

    Raises:
        RefusedError: NOT_FOUND if there is no such job, trajectory or group; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    if request.trajectory_id:
        if request.trajectory_id not in job.trajectory_specs:
            raise unknown_trajectory(job, request.trajectory_id)
        found: Iterable[str] = [request.trajectory_id]
    else:
        found = job.trajectory_specs if request.closed else job.trajectories
    if request.group_id:
        group = job.groups.get(request.group_id)
        if group is None:
            raise unknown_group(job, request.group_id)
        siblings = group.members.keys() | group.lost.keys()
        found = [each for each in found if each in siblings]
    page, more = await _page(found, request.after, request.page_size)
    told = await in_turns(made_of(page, lambda each: _trajectory_status(job, each, now)))
    return client_service_pb2.ListTrajectoriesResponse(trajectories=filter(None, told), more=more)


def _trajectory_status(job: Job, trajectory_id: str, now: float) -> job_pb2.TrajectoryStatus | None:
    """Returns a trajectory of a page; None if it was forgotten since the page was chosen."""
    return trajectory_status(job, trajectory_id, now) if trajectory_id in job.trajectory_specs else None


async def list_groups(
    state: SchedulerState, request: client_service_pb2.ListGroupsRequest, now: float
) -> client_service_pb2.ListGroupsResponse:
    """Returns a page of a job's groups, or the one that is asked for.

    Raises:
        RefusedError: NOT_FOUND if there is no such job or group; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    if request.group_id and request.group_id not in job.groups:
        raise unknown_group(job, request.group_id)
    found: Iterable[str] = [request.group_id] if request.group_id else job.groups
    page, more = await _page(found, request.after, request.page_size)
    known = [(each, job.groups[each]) for each in page if each in job.groups]
    told = await in_turns(made_of(known, lambda each: group_status(job, *each, now)))
    return client_service_pb2.ListGroupsResponse(groups=told, more=more)


async def _page(ids: Iterable[str], after: str, page_size: int) -> tuple[list[str], bool]:
    """Returns the first ids after one in name order, and whether there are more; sorts very many beside the loop."""
    size = int(within("page_size", page_size, 0, MAX_PAGE)) or DEFAULT_PAGE
    known = list(ids)
    if len(known) <= MOST_ON_LOOP:
        found = _first_after(known, after, size + 1)
    else:
        found = await anyio.to_thread.run_sync(_first_after, known, after, size + 1)
    return found[:size], len(found) > size


def _first_after(ids: Sequence[str], after: str, count: int) -> list[str]:
    return heapq.nsmallest(count, (each for each in ids if each > after))
