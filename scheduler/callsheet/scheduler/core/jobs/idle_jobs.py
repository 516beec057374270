"""Idle jobs: a job whose client is there and does nothing is closed after a while.

Work is an open action, an action that ends, and every request of a client about the job. A session that holds the job
is no work. Nor is an open trajectory: trajectories have an idle timeout of their own.
"""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState


def idle_timeout_of(state: SchedulerState, job: Job) -> float | None:
    """Seconds without work after which a job is closed; None for a detached one that names none."""
    request = job.request
    if request.idle_timeout is None and not request.detached:
        return state.settings.job_idle_timeout
    return request.idle_timeout


def worked(state: SchedulerState, job: Job, now: float) -> None:
    """Something happened in a job."""
    job.active_at = now
    if state.timers.get(("idle", job.request.job_id)) is None:
        watch(state, job)


def watch(state: SchedulerState, job: Job) -> None:
    """Arms the deadline of a job's idle timeout."""
    due = idle_at(state, job)
    if due is not None:
        state.timers.set(("idle", job.request.job_id), due)


def idle_at(state: SchedulerState, job: Job) -> float | None:
    """When a job will have been idle for too long, if nothing happens until then; None if it never is."""
    timeout = idle_timeout_of(state, job)
    return None if timeout is None else job.active_at + timeout
