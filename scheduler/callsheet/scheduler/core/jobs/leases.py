"""A job's lease: client sessions hold a job, and without any it lives on for a grace.

The time left is journalled now and then, never a time of day. So the clock of a lease stands still while no scheduler
runs, and schedulers that restart often do not begin it anew.
"""

from __future__ import annotations

from callsheet.scheduler.core.jobs.idle_jobs import worked
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.events import ReplyTo
from callsheet.scheduler.core.words.peers import ClientSession
from callsheet.scheduler.core.words.records import JobLease
from callsheet.scheduler.core.words.refusals import failed_precondition, not_found

# What is left of a lease is journalled so many times, though not more often nor more rarely than this; in seconds.
SAVES = 12
SHORTEST_SAVE = 1.0
LONGEST_SAVE = 60.0


def open_job(
    state: SchedulerState, job_id: str, reply_to: ReplyTo | None = None, *, works_at: float | None = None
) -> Job:
    """An open job. The client session that asks for it, if one does, holds it from now on.

    Args:
        state: The scheduler's state.
        job_id: The job.
        reply_to: Who asks.
        works_at: When, in seconds since the epoch, if this is work, so that the job is not idle.

    Raises:
        RefusedError: NOT_FOUND if it is not open.
    """
    job = state.jobs.get(job_id)
    if job is None or job.over:
        why = state.summaries.reason_of_close(job_id)
        rule = f"names no open job: {why}; open it again" if why else "names no open job; open it first"
        raise not_found("job_id", job_id, rule)
    if works_at is not None:
        worked(state, job, works_at)
    if reply_to is not None and reply_to.holds and reply_to.session not in job.lease.sessions:
        hold(state, job, reply_to.session)
    return job


def check_not_expired(job: Job) -> None:
    """New work is for jobs whose client is there.

    Raises:
        RefusedError: FAILED_PRECONDITION if the job has expired.
    """
    if job.lease.expired:
        rule = "has expired, as no client session held it; hold it on a stream first"
        raise failed_precondition("job_id", job.request.job_id, rule)


def full_time(state: SchedulerState, job: Job) -> float:
    """Seconds that a job lives on without a session, until it expires or, having expired, is closed."""
    return state.settings.expired_job_lifetime if job.lease.expired else grace_of(state, job)


def grace_of(state: SchedulerState, job: Job) -> float:
    """Seconds that a job lives on without a session until it expires."""
    return job.request.grace if job.request.grace is not None else state.settings.job_grace


def hold(state: SchedulerState, job: Job, session: ClientSession) -> None:
    """A client session holds a job: its grace ends, and so does its having expired."""
    lease = job.lease
    lease.sessions.add(session)
    if lease.expired or lease.left is not None:
        state.persist(JobLease(job.request.job_id, expired=False, left=None))
    lease.expired, lease.ends_at, lease.left = False, None, None
    state.timers.drop(("job", job.request.job_id))


def let_go(state: SchedulerState, job: Job, session: ClientSession, now: float) -> None:
    """A client session holds a job no longer; after the last one its grace begins."""
    lease = job.lease
    if session in lease.sessions:
        lease.sessions.discard(session)
        if not lease.sessions:
            begin(state, job, now)


def begin(state: SchedulerState, job: Job, now: float, *, still_for: float = 0.0) -> None:
    """Lets the clock of a job without a session run.

    Args:
        state: The scheduler's state.
        job: One that no session holds.
        now: Seconds since the epoch.
        still_for: Seconds that the clock stands still first.
    """
    lease = job.lease
    if job.request.detached or lease.sessions:
        return
    full = full_time(state, job)
    left = full if lease.left is None else min(lease.left, full)
    lease.ends_at = now + still_for + left
    _set_timer(state, job, now + still_for)


def save(state: SchedulerState, job: Job, now: float) -> None:
    """Journals what is left of a job's lease, and looks after it again when that has changed enough."""
    lease = job.lease
    if lease.ends_at is None:
        return
    lease.left = min(lease.ends_at - now, full_time(state, job) if lease.left is None else lease.left)
    state.persist(JobLease(job.request.job_id, lease.expired, lease.left))
    _set_timer(state, job, now)


def _set_timer(state: SchedulerState, job: Job, now: float) -> None:
    if job.lease.ends_at is not None:
        wait = min(max(full_time(state, job) / SAVES, SHORTEST_SAVE), LONGEST_SAVE)
        state.timers.set(("job", job.request.job_id), min(job.lease.ends_at, now + wait))


def on_job_hold(state: SchedulerState, event: events.JobHoldRequested, now: float) -> None:
    """A client session holds a job."""
    open_job(state, event.job_id, event.reply_to)
    state.accept(event.reply_to)


def on_job_release(state: SchedulerState, event: events.JobReleaseRequested, now: float) -> None:
    """A client session holds a job no longer; it need not have held it."""
    job = state.jobs.get(event.job_id)
    if job is not None:
        let_go(state, job, event.reply_to.session, now)
    state.accept(event.reply_to)


def on_session_ended(state: SchedulerState, event: events.SessionEnded, now: float) -> None:
    """Lets go of all that a client session held."""
    for job in state.jobs.values():
        let_go(state, job, event.session, now)
