"""Jobs without a client: their expiry, and the close of those that are expired or idle for long."""

from __future__ import annotations

from callsheet.scheduler.core.jobs.batches import give_all_back
from callsheet.scheduler.core.jobs.idle_jobs import idle_at, watch
from callsheet.scheduler.core.jobs.leases import begin, save
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.records import JobLease
from callsheet.scheduler.core.work.cancel import give_up
from callsheet.scheduler.core.work.submission import close_job

EXPIRED = "its job expired: no client session held it"


def job_due(state: SchedulerState, job_id: str, now: float) -> None:
    """Lets a job expire whose grace is over, closes one that has expired for long; else saves what is left."""
    job = state.jobs.get(job_id)
    if job is None or job.over or job.lease.ends_at is None:
        return
    if now < job.lease.ends_at:
        save(state, job, now)
    elif job.lease.expired:
        close_job(state, job, EXPIRED)
    else:
        _expire(state, job, now)


def idle_due(state: SchedulerState, job_id: str, now: float) -> None:
    """Closes a job in which nothing happened for too long, whether anybody holds it or not."""
    job = state.jobs.get(job_id)
    due = idle_at(state, job) if job is not None and not job.over else None
    if job is None or due is None:
        return
    if job.open_actions:
        job.active_at = now
    if job.open_actions or now < due:
        watch(state, job)
    else:
        close_job(state, job, f"its job was idle for {now - job.active_at:.0f} s")


def _expire(state: SchedulerState, job: Job, now: float) -> None:
    """Gives up what a job's client left behind. Outcomes stay for one that comes back."""
    job.lease.expired, job.lease.left = True, None
    state.persist(JobLease(job.request.job_id, expired=True, left=None))
    give_up(state, job, EXPIRED)
    give_all_back(state, job, now)
    begin(state, job, now)
