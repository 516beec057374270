"""Requests of clients: jobs, actions, policy versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from callsheet.scheduler.core.hosted.rollouts import begin_rollout, end_rollouts, note_generation
from callsheet.scheduler.core.hosted.service_load import count_reward
from callsheet.scheduler.core.jobs.batches import drop_buffer
from callsheet.scheduler.core.jobs.idle_jobs import worked
from callsheet.scheduler.core.jobs.leases import begin, check_not_expired, open_job
from callsheet.scheduler.core.jobs.open_limits import check_room, check_room_for_job
from callsheet.scheduler.core.jobs.retention import drop_job
from callsheet.scheduler.core.state.chores import Part, open_actions
from callsheet.scheduler.core.state.entities import Action, FinishedAction, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.transitions import SUBMITTED
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import Cancellation, DeliverStored
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionKind,
    ActionRequest,
    Opened,
    Opening,
    SandboxCopy,
    TrajectoryEnd,
)
from callsheet.scheduler.core.words.peers import Watcher
from callsheet.scheduler.core.words.records import (
    ActionSubmitted,
    JobClosed,
    JobOpened,
    PolicyVersionPublished,
    TrajectoryCommandTimeout,
)
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, failed_precondition
from callsheet.scheduler.core.words.staleness import is_evicted
from callsheet.scheduler.core.work.adoption import adopt_orphan, adoptable_orphan
from callsheet.scheduler.core.work.attempts import on_ended
from callsheet.scheduler.core.work.costs import persist_costs
from callsheet.scheduler.core.work.lifecycle import await_turn, detach_attempt, finish
from callsheet.scheduler.core.work.over_or_unknown import check_not_forgotten, closed_trajectory, unknown_action
from callsheet.scheduler.core.work.servability import check_servable
from callsheet.scheduler.core.work.trajectories import abandon, close_trajectory

CLOSED = "its job was closed"
_ON_REQUEST: Final = "on request"
# What is left of a job that is kept or freed at a time.
_FREED: Final = 256


def on_job_open(state: SchedulerState, event: events.JobOpenRequested, now: float) -> None:
    """Opens a job; the same spec again is accepted."""
    job, opening = state.jobs.get(event.job.job_id), Opening.ATTACHED
    if job is None:
        check_room_for_job(state, event.job)
        job, opening = Job(event.job, begun_after=state.next_token(), opened_at=now), Opening.CREATED
        add_job(state, job)
        state.persist(JobOpened(event.job.job_id, event.job.spec, *job.begun_after, now))
        begin(state, job, now)
    elif job.over:
        rule = "is being closed, and may be opened again once it is"
        retry_after = state.settings.full_retry_after
        raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "job.job_id", event.job.job_id, rule, retry_after)
    elif job.request.spec != event.job.spec:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "job.job_id", event.job.job_id, "is open with another specification"
        )
    open_job(state, event.job.job_id, event.reply_to, works_at=now)
    state.accept(event.reply_to, opened=Opened(opening, life=job.begun_after))


def add_job(state: SchedulerState, job: Job) -> None:
    """Adds an open job."""
    state.jobs[job.request.job_id] = job
    job.spec_bytes += len(job.request.spec)
    state.spec_bytes += len(job.request.spec)


def on_job_close(state: SchedulerState, event: events.JobCloseRequested, now: float) -> None:
    """Closes a job."""
    close_job(state, open_job(state, event.job_id), CLOSED, event.reply_to)


def close_job(state: SchedulerState, job: Job, reason: str, reply_to: events.ReplyTo | None = None) -> None:
    """Ends all that is under a job, and forgets it; in parts, and for who asks it is not open any more meanwhile.

    Args:
        state: The scheduler's state.
        job: An open job.
        reason: Why.
        reply_to: Who is answered once it is done.
    """
    job.over = True

    def parts() -> Iterator[Part | None]:
        yield from (partial(abandon, state, job, [each], reason) for each in list(job.trajectories))
        for each in open_actions(job):
            yield partial(_end_with_job, state, each, reason) if each is not None else None
        ended = list(job.finished)
        for first in range(0, max(len(ended), 1), _FREED):
            yield partial(_remember, state, job, ended[first : first + _FREED], reason)
        yield partial(_forget_job, state, job, reason, reply_to)
        # To free a hundred thousand things takes long, too.
        kept: tuple[dict[str, Any], ...] = (job.actions, job.trajectory_specs, job.closed_trajectories)
        for mapping in kept:
            while mapping:
                for _ in range(min(len(mapping), _FREED)):
                    mapping.popitem()
                yield None

    state.chores.add(("job", job.request.job_id), parts())


def _end_with_job(state: SchedulerState, action: Action, reason: str, now: float) -> None:
    if action.state.terminal:
        return
    if action.attempt is not None:
        detach_attempt(state, action, action.attempt, reason, now)
    finish(state, action, Cancellation(reason), now)


def _remember(state: SchedulerState, job: Job, action_ids: Collection[str], reason: str, now: float) -> None:
    """Keeps summaries of actions of a job that is being closed, in the order of their outcomes."""
    why = reason if reason != CLOSED else ""
    state.persist(state.summaries.close_job(job.request.job_id, action_ids, now, why))


def _forget_job(state: SchedulerState, job: Job, reason: str, reply_to: events.ReplyTo | None, now: float) -> None:
    job_id = job.request.job_id
    # No row of the job changes after the record of its close.
    persist_costs(state, now)
    job.closed_at = now
    drop_job(state, job)
    drop_buffer(state, job)
    del state.jobs[job_id]
    end_rollouts(state, job_id, now)
    state.timers.drop(("job", job_id))
    state.timers.drop(("idle", job_id))
    why = reason if reason != CLOSED else _ON_REQUEST
    state.persist(JobClosed(job_id, why, job.opened_at, now, job.account.until(now)))
    if reply_to is not None:
        state.accept(reply_to)


def on_submit(state: SchedulerState, event: events.SubmitRequested, now: float) -> None:
    """Accepts a new action, or attaches to one that is known."""
    request = event.request
    job = open_job(state, request.key.job_id, event.reply_to, works_at=now)
    known = job.actions.get(request.key.action_id)
    if known is not None:
        _attach(state, event, known)
        return
    check_not_forgotten(job, request.key, request.body_hash)
    check_not_expired(job)
    trajectory = _trajectory_of(job, request)
    check_room(state, job, request)
    request = _settle_copy(trajectory, request).with_service_demand(state.service_demands.get(request.service))
    orphan = adoptable_orphan(state, job, request)
    awaits_role = False
    if orphan is None:
        if trajectory is not None:
            _check_sandbox(trajectory, request)
        awaits_role = check_servable(state, request, trajectory)
    action = add_action(state, job, request, trajectory, now)
    action.awaits_role = awaits_role
    if event.watcher is not None:
        action.watchers.append(event.watcher)
    submitted = (*request.key, request.trajectory_id, request.body_hash, request.spec, now, request.copies_sandbox)
    state.persist(ActionSubmitted(*submitted, kind=request.kind))
    if trajectory is not None and request.kind is ActionKind.ENV_RESET:
        _take_command_timeout(state, trajectory, request)
    state.accept(event.reply_to, patient=True)
    if orphan is not None:
        adopt_orphan(state, action, orphan, now)
        if orphan.ended is not None and action.attempt is not None:
            on_ended(state, orphan.ended, now)
    else:
        await_turn(state, action, now)


def _take_command_timeout(state: SchedulerState, trajectory: Trajectory, reset: ActionRequest) -> None:
    """Has later actions run in the sandbox of this reset, and take their execution timeout from it."""
    if trajectory.command_timeout != reset.command_timeout:
        trajectory.command_timeout = reset.command_timeout
        state.persist(TrajectoryCommandTimeout(*trajectory.key, reset.command_timeout))


def _attach(state: SchedulerState, event: events.SubmitRequested, known: Action | FinishedAction) -> None:
    body_hash = known.request.body_hash if isinstance(known, Action) else known.body_hash
    if body_hash != event.request.body_hash:
        raise RefusedError(
            RefusalCode.ALREADY_EXISTS, "action_id", event.request.key.action_id, "was submitted with another body"
        )
    state.accept(event.reply_to)
    if event.watcher is not None:
        _watch(state, known, event.watcher, event.request.key)


def _watch(state: SchedulerState, known: Action | FinishedAction, watcher: Watcher, key: ActionKey) -> None:
    if isinstance(known, Action):
        # A client that comes back, or asks time and again, leaves its earlier sessions behind.
        known.watchers = [each for each in known.watchers if not each.gone]
        if watcher not in known.watchers:
            known.watchers.append(watcher)
    else:
        state.emit(DeliverStored(watcher, key))


def on_outcome_requested(state: SchedulerState, event: events.OutcomeRequested, now: float) -> None:
    """Attaches a watcher to an action that was submitted before."""
    known = state.find_action(event.key)
    if known is None:
        raise unknown_action(state, event.key)
    worked(state, state.jobs[event.key.job_id], now)
    state.accept(event.reply_to)
    _watch(state, known, event.watcher, event.key)


def _trajectory_of(job: Job, request: ActionRequest) -> Trajectory | None:
    if not request.trajectory_id:
        return None
    trajectory = job.trajectories.get(request.trajectory_id)
    if trajectory is not None:
        return trajectory
    closed = closed_trajectory(job, request.trajectory_id)
    rule = f"was closed as {closed.end.value}: {closed.reason}"
    raise failed_precondition("trajectory_id", request.trajectory_id, rule)


def _settle_copy(trajectory: Trajectory | None, request: ActionRequest) -> ActionRequest:
    """Settles for good whether an action runs in a copy of its trajectory's sandbox: one that is, was or is to come."""
    if request.copy is SandboxCopy.NEVER or trajectory is None:
        return request
    if trajectory.had_sandbox or _awaits_reset(trajectory):
        return replace(request, in_sandbox=True)
    if request.copy is SandboxCopy.ALWAYS:
        rule = "has no sandbox to begin a fresh one with: give files or an image, or submit an env_reset first"
        raise failed_precondition("trajectory_id", request.trajectory_id, rule)
    return request


def _awaits_reset(trajectory: Trajectory) -> bool:
    return any(not action.request.needs_sandbox for action in trajectory.line)


def _check_sandbox(trajectory: Trajectory, request: ActionRequest) -> None:
    if not request.needs_sandbox or trajectory.sandbox_id or trajectory.lost:
        return
    if not _awaits_reset(trajectory):
        raise failed_precondition("trajectory_id", request.trajectory_id, "has no sandbox; submit an env_reset first")


def add_action(
    state: SchedulerState, job: Job, request: ActionRequest, trajectory: Trajectory | None, now: float
) -> Action:
    """Adds an action without an outcome to its job and trajectory and arms its deadlines."""
    if trajectory is not None and request.needs_sandbox:
        timeouts = request.timeouts.with_default_execution(trajectory.command_timeout)
        if timeouts is not request.timeouts:
            request = replace(request, timeouts=timeouts)
    action = Action(request, job, trajectory, state.next_arrival(), now, now)
    action.tell(now, "submitted")
    job.actions[request.key.action_id] = action
    _count_open(state, job, request)
    count_reward(action)
    if request.kind is ActionKind.GENERATE:
        note_generation(job, request.service)
    timeouts = request.timeouts
    state.timers.set(("action", request.key), now + min(timeouts.schedule_to_start, timeouts.schedule_to_close))
    if trajectory is not None:
        trajectory.last_activity = now
        trajectory.open_actions[request.key.action_id] = action
        if request.in_sandbox:
            trajectory.line.append(action)
    return action


def _count_open(state: SchedulerState, job: Job, request: ActionRequest) -> None:
    size = len(request.spec)
    job.open_actions += 1
    job.open_bytes += size
    state.open_actions += 1
    state.open_bytes += size
    job.state_counts[SUBMITTED.target] = job.state_counts.get(SUBMITTED.target, 0) + 1


def on_policy_published(state: SchedulerState, event: events.PolicyPublished, now: float) -> None:
    """Records a job's newest policy version, with its weights if it has any, and closes trajectories that are stale."""
    job = open_job(state, event.job_id, event.reply_to, works_at=now)
    if event.version < job.policy_version:
        raise failed_precondition("version", event.version, f"must not be below {job.policy_version}")
    begin_rollout(state, job, event, now)
    if event.version > job.policy_version:
        job.policy_version = event.version
        state.persist(PolicyVersionPublished(event.job_id, event.version))
        _evict(state, job)
    state.accept(event.reply_to)


def _evict(state: SchedulerState, job: Job) -> None:
    """Closes live trajectories that a new version made too stale.

    Of paced ones those that wait are left: they count their staleness from where they begin.
    """
    policy, key = job.request.staleness, ("evict", job.request.job_id)
    if policy.evict_beyond is None or key in state.chores:
        return
    paced = policy.admit_within is not None
    reason = f"its staleness is beyond {policy.evict_beyond} versions"

    def evict(trajectory_id: str, now: float) -> None:
        if (trajectory := job.trajectories.get(trajectory_id)) is not None:
            job.buffer.lengths.note("evicted", now - trajectory.began_at)
            close_trajectory(state, trajectory, TrajectoryEnd.ABANDONED, reason, now)

    def parts() -> Iterator[Part | None]:
        version = -1
        while version < job.policy_version:
            version = job.policy_version
            stale = [
                id_
                for id_, each in job.trajectories.items()
                if is_evicted(policy, version, each.policy_version) and not (paced and each.admitted_at is None)
            ]
            yield from (partial(evict, each) for each in stale)

    state.chores.add(key, parts())
