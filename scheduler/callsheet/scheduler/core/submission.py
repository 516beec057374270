"""Requests of clients: jobs, trajectories, actions, policy versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callsheet.scheduler.core import events
from callsheet.scheduler.core.adoption import adopt_orphan
from callsheet.scheduler.core.attempts import on_ended
from callsheet.scheduler.core.commands import Cancellation, DeliverStored
from callsheet.scheduler.core.entities import Action, FinishedAction, Group, Job, Trajectory
from callsheet.scheduler.core.lifecycle import cancel, detach_attempt, drop_sandbox, enqueue, finish
from callsheet.scheduler.core.model import ActionKey, ActionRequest, RefusalCode, RefusedError, TrajectoryRequest
from callsheet.scheduler.core.records import (
    ActionSubmitted,
    JobClosed,
    JobOpened,
    PolicyVersionPublished,
    TrajectoryClosed,
    TrajectoryOpened,
)
from callsheet.scheduler.core.servability import check_servable

if TYPE_CHECKING:
    from callsheet.scheduler.core.state import SchedulerState

COMPLETED = "completed"
ABANDONED = "abandoned"
CLOSED = "its trajectory was closed"
REDUNDANT = "its group has its quorum"


def open_job(state: SchedulerState, job_id: str) -> Job:
    """An open job.

    Raises:
        RefusedError: NOT_FOUND if it is not open.
    """
    job = state.jobs.get(job_id)
    if job is None:
        raise RefusedError(RefusalCode.NOT_FOUND, "job_id", job_id, "names no open job; open it first")
    return job


def on_job_open(state: SchedulerState, event: events.JobOpenRequested, now: float) -> None:
    """Opens a job; the same spec again is accepted."""
    known = state.jobs.get(event.job.job_id)
    if known is None:
        state.jobs[event.job.job_id] = Job(event.job)
        state.persist(JobOpened(event.job.job_id, event.job.spec))
    elif known.request.spec != event.job.spec:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "job.job_id", event.job.job_id, "is open with another specification"
        )
    state.accept(event.reply_to)


def on_job_close(state: SchedulerState, event: events.JobCloseRequested, now: float) -> None:
    """Closes a job and all that is under it, and forgets it."""
    job = open_job(state, event.job_id)
    reason = "its job was closed"
    for trajectory in list(job.trajectories.values()):
        close_trajectory(state, trajectory, ABANDONED, reason, now)
    for action in list(job.actions.values()):
        if isinstance(action, Action):
            if action.attempt is not None:
                detach_attempt(state, action, action.attempt, reason, now)
            finish(state, action, Cancellation(reason), now)
    del state.jobs[event.job_id]
    state.persist(JobClosed(event.job_id))
    state.persist(state.summaries.close_job(event.job_id, job.actions, now))
    state.accept(event.reply_to)


def on_trajectory_open(state: SchedulerState, event: events.TrajectoryOpenRequested, now: float) -> None:
    """Opens a trajectory; the same spec again is accepted, even if it has been closed since."""
    request = event.trajectory
    job = open_job(state, request.job_id)
    known = job.trajectory_specs.get(request.trajectory_id)
    if known is not None and known != request.spec:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "trajectory.trajectory_id", request.trajectory_id, "exists with another spec"
        )
    if known is None:
        _check_group(job, request)
        trajectory = add_trajectory(state, job, request, job.policy_version, now)
        state.persist(TrajectoryOpened(request.job_id, request.trajectory_id, request.spec, job.policy_version, now))
        if request.group is not None:
            group = job.groups[request.group.group_id]
            if group.completed >= group.quorum:
                close_trajectory(state, trajectory, ABANDONED, REDUNDANT, now)
    state.accept(event.reply_to)


def _check_group(job: Job, request: TrajectoryRequest) -> None:
    if request.group is None:
        return
    group = job.groups.get(request.group.group_id)
    if group is None:
        return
    if (group.size, group.quorum) != (request.group.size, request.group.quorum):
        raise RefusedError(
            RefusalCode.FAILED_PRECONDITION,
            "trajectory.group",
            request.group,
            f"must agree with its siblings: size {group.size}, quorum {group.quorum}",
        )
    if len(group.members) >= group.size:
        raise RefusedError(
            RefusalCode.FAILED_PRECONDITION, "trajectory.group.size", group.size, "the group has all its trajectories"
        )


def add_trajectory(
    state: SchedulerState, job: Job, request: TrajectoryRequest, policy_version: int, now: float
) -> Trajectory:
    """Adds an open trajectory to its job and its group."""
    trajectory = Trajectory(request, job, policy_version, now)
    job.trajectories[request.trajectory_id] = trajectory
    job.trajectory_specs[request.trajectory_id] = request.spec
    if request.group is not None:
        group = job.groups.setdefault(request.group.group_id, Group(request.group.size, request.group.quorum))
        group.members.add(request.trajectory_id)
    state.timers.set(("trajectory", trajectory.key), now + request.idle_timeout)
    return trajectory


def on_trajectory_close(state: SchedulerState, event: events.TrajectoryCloseRequested, now: float) -> None:
    """Closes a trajectory; closing it again is accepted."""
    job = open_job(state, event.job_id)
    trajectory = job.trajectories.get(event.trajectory_id)
    if trajectory is None and event.trajectory_id not in job.closed_trajectories:
        raise RefusedError(
            RefusalCode.NOT_FOUND, "trajectory_id", event.trajectory_id, "names no trajectory of the job"
        )
    if trajectory is not None:
        end = COMPLETED if event.completed else ABANDONED
        close_trajectory(state, trajectory, end, CLOSED, now)
    state.accept(event.reply_to)


def close_trajectory(state: SchedulerState, trajectory: Trajectory, end: str, reason: str, now: float) -> None:
    """Cancels a trajectory's actions, releases its sandbox and counts it in its group."""
    job_id, trajectory_id = trajectory.key
    job = trajectory.job
    del job.trajectories[trajectory_id]
    job.closed_trajectories[trajectory_id] = end
    state.timers.drop(("trajectory", trajectory.key))
    # The last first: an action that waits for a reset ahead of it would otherwise end as one whose sandbox is gone.
    for action in reversed(list(trajectory.open_actions.values())):
        cancel(state, action, reason, now)
    if trajectory.admitted_at is not None:
        job.live_trajectories -= 1
    if trajectory.sandbox_id:
        drop_sandbox(state, trajectory, now, lost=False)
    state.persist(TrajectoryClosed(job_id, trajectory_id, end))
    if trajectory.request.group is not None and end == COMPLETED:
        _count_completed(state, job, trajectory.request.group.group_id, now)


def _count_completed(state: SchedulerState, job: Job, group_id: str, now: float) -> None:
    group = job.groups[group_id]
    group.completed += 1
    if group.completed < group.quorum:
        return
    for member in sorted(group.members):
        redundant = job.trajectories.get(member)
        if redundant is not None:
            close_trajectory(state, redundant, ABANDONED, REDUNDANT, now)


def on_submit(state: SchedulerState, event: events.ActionSubmitted, now: float) -> None:
    """Accepts a new action, or attaches to one that is known."""
    request = event.request
    job = open_job(state, request.key.job_id)
    known = job.actions.get(request.key.action_id)
    if known is not None:
        _attach(state, event, known)
        return
    trajectory = _trajectory_of(job, request)
    _check_room(state, job)
    orphan = state.orphans.get(request.key)
    if orphan is not None and orphan.body_hash != request.body_hash:
        orphan = None
    awaits_role = False
    if orphan is None:
        if trajectory is not None:
            _check_sandbox(trajectory, request)
        awaits_role = check_servable(state, request, trajectory)
    action = add_action(state, job, request, trajectory, now)
    action.awaits_role = awaits_role
    if event.watcher is not None:
        action.watchers.append(event.watcher)
    state.persist(ActionSubmitted(*request.key, request.trajectory_id, request.body_hash, request.spec, now))
    state.accept(event.reply_to, patient=True)
    if orphan is not None:
        adopt_orphan(state, action, orphan, now)
        if orphan.ended is not None and action.attempt is not None:
            on_ended(state, orphan.ended, now)
    else:
        enqueue(state, action, now)


def _attach(state: SchedulerState, event: events.ActionSubmitted, known: Action | FinishedAction) -> None:
    body_hash = known.request.body_hash if isinstance(known, Action) else known.body_hash
    if body_hash != event.request.body_hash:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "action_id", event.request.key.action_id, "was submitted with another body"
        )
    state.accept(event.reply_to)
    if event.watcher is not None:
        _watch(state, known, event.watcher, event.request.key.job_id, event.request.key.action_id)


def _watch(state: SchedulerState, known: Action | FinishedAction, watcher: object, job_id: str, action_id: str) -> None:
    if isinstance(known, Action):
        # A client that comes back, or asks time and again, leaves its earlier sessions behind.
        known.watchers = [each for each in known.watchers if not state.watcher_gone(each)]
        if watcher not in known.watchers:
            known.watchers.append(watcher)
    else:
        state.emit(DeliverStored(watcher, ActionKey(job_id, action_id)))


def on_outcome_requested(state: SchedulerState, event: events.OutcomeRequested, now: float) -> None:
    """Attaches a watcher to an action that was submitted before."""
    known = state.find_action(event.key)
    if known is None:
        raise RefusedError(RefusalCode.NOT_FOUND, "key", "/".join(event.key), "names no action of an open job")
    state.accept(event.reply_to)
    _watch(state, known, event.watcher, *event.key)


def _trajectory_of(job: Job, request: ActionRequest) -> Trajectory | None:
    if not request.trajectory_id:
        return None
    trajectory = job.trajectories.get(request.trajectory_id)
    if trajectory is not None:
        return trajectory
    end = job.closed_trajectories.get(request.trajectory_id)
    if end is not None:
        raise RefusedError(
            RefusalCode.FAILED_PRECONDITION, "trajectory_id", request.trajectory_id, f"was closed as {end}"
        )
    raise RefusedError(RefusalCode.NOT_FOUND, "trajectory_id", request.trajectory_id, "names no trajectory of the job")


def _check_sandbox(trajectory: Trajectory, request: ActionRequest) -> None:
    if not request.needs_sandbox or trajectory.sandbox_id or trajectory.lost:
        return
    if not any(not action.request.needs_sandbox for action in trajectory.line):
        raise RefusedError(
            RefusalCode.FAILED_PRECONDITION,
            "trajectory_id",
            request.trajectory_id,
            "has no sandbox; submit an env_reset first",
        )


def _check_room(state: SchedulerState, job: Job) -> None:
    settings = state.settings
    if state.open_actions >= settings.max_open_actions:
        raise RefusedError(
            RefusalCode.RESOURCE_EXHAUSTED,
            "action_id",
            state.open_actions,
            f"the queue holds its {settings.max_open_actions} actions",
            settings.full_retry_after,
        )
    limit = job.request.max_actions
    if limit and job.open_actions >= limit:
        raise RefusedError(
            RefusalCode.RESOURCE_EXHAUSTED,
            "job_id",
            job.open_actions,
            f"the job has its max_actions of {limit} open",
            settings.full_retry_after,
        )


def add_action(
    state: SchedulerState, job: Job, request: ActionRequest, trajectory: Trajectory | None, now: float
) -> Action:
    """Adds an action without an outcome to its job and trajectory and arms its deadlines."""
    action = Action(request, job, trajectory, state.next_arrival(), now, now)
    action.tell(now, "submitted")
    job.actions[request.key.action_id] = action
    job.open_actions += 1
    state.open_actions += 1
    timeouts = request.timeouts
    state.timers.set(("action", request.key), now + min(timeouts.schedule_to_start, timeouts.schedule_to_close))
    if trajectory is not None:
        trajectory.last_activity = now
        trajectory.open_actions[request.key.action_id] = action
        if request.in_sandbox:
            trajectory.line.append(action)
    return action


def on_policy_published(state: SchedulerState, event: events.PolicyPublished, now: float) -> None:
    """Records a job's newest policy version and closes the trajectories it leaves too far behind."""
    job = open_job(state, event.job_id)
    if event.version < job.policy_version:
        raise RefusedError(
            RefusalCode.FAILED_PRECONDITION, "version", event.version, f"must not be below {job.policy_version}"
        )
    if event.version > job.policy_version:
        job.policy_version = event.version
        state.persist(PolicyVersionPublished(event.job_id, event.version))
        bound = job.request.max_staleness
        for trajectory in list(job.trajectories.values()):
            if bound and event.version - trajectory.policy_version > bound:
                close_trajectory(state, trajectory, ABANDONED, f"its staleness is beyond {bound} versions", now)
    state.accept(event.reply_to)
