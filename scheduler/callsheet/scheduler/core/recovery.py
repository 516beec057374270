"""A state that continues from what the journal kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from callsheet.scheduler.core.hosted.rollouts import note_generation
from callsheet.scheduler.core.jobs.batches import restore_batch, restore_whole
from callsheet.scheduler.core.jobs.final_close import count_open, restore_closed
from callsheet.scheduler.core.jobs.idle_jobs import worked
from callsheet.scheduler.core.jobs.leases import begin
from callsheet.scheduler.core.jobs.retention import keep
from callsheet.scheduler.core.state.announced_managers import UNKNOWN, Awaited
from callsheet.scheduler.core.state.buffer import BufferedTrajectory
from callsheet.scheduler.core.state.entities import Action, Attempt, FinishedAction, Job, Trajectory
from callsheet.scheduler.core.state.forgotten_ids import completed_of, states_of
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.transitions import RECOVERED
from callsheet.scheduler.core.words.costs import NOTHING, Account
from callsheet.scheduler.core.words.engine_weights import WeightsOffer, WeightsRollout
from callsheet.scheduler.core.words.model import (
    ActionRequest,
    ActionState,
    JobRequest,
    Token,
    TrajectoryEnd,
    TrajectoryRequest,
    TrajectoryResult,
)
from callsheet.scheduler.core.words.records import SchedulerAway
from callsheet.scheduler.core.words.recovered import (
    Recovered,
    RecoveredAction,
    RecoveredJob,
    RecoveredRollout,
    RecoveredTrajectory,
)
from callsheet.scheduler.core.work.admission_counts import count_live, note_begun
from callsheet.scheduler.core.work.lifecycle import await_turn, stop_attempt
from callsheet.scheduler.core.work.submission import add_action, add_job
from callsheet.scheduler.core.work.trajectories import add_closed, add_trajectory, count_closed, group_of


class RequestDecoder(NamedTuple):
    """Turns journalled specs back into requests; the shell provides it, since the core knows no wire format."""

    job: Callable[[bytes], JobRequest]
    trajectory: Callable[[bytes], TrajectoryRequest]
    action: Callable[[bytes], ActionRequest]
    weights: Callable[[bytes], WeightsOffer]
    result: Callable[[bytes], TrajectoryResult]


class TimeAway:
    """The times in which no scheduler ran: clocks that clients set by a submit stand still meanwhile.

    Times are those of the schedulers' own clocks. They are set by the wall clock at each start and never step while one
    runs. A wall clock that was set between two of them makes the time away longer or shorter: forwards it is longer by
    as much, so that no deadline strikes early; backwards it is none.

    Args:
        spans: In seconds since the epoch, each as (since, until).
    """

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans

    def after(self, time: float) -> float:
        """How many seconds of the spans came after a time."""
        return sum(max(until - max(since, time), 0.0) for since, until in self._spans)


def restore(state: SchedulerState, recovered: Recovered, decode: RequestDecoder, now: float) -> None:
    """Fills an empty state. Dispatched actions and sandboxes wait one lease for their managers to register again."""
    if state.epoch > 1:
        state.restored_at = now
        state.awaits_returns = True
        state.timers.set(("returns", ""), now + state.settings.manager_lease)
    for job in recovered.jobs:
        _restore_job(state, job, decode, now)
    for rollout in recovered.rollouts:
        _restore_rollout(state, rollout, decode)
    for job_id, entries in recovered.forgotten:
        _restore_forgotten(state.jobs[job_id], entries)
    away = _time_away(state, recovered, now)
    state.away_s = away.after(0.0)
    for trajectory in recovered.trajectories:
        _restore_trajectory(state, trajectory, decode, now)
    waiting: list[Action] = []
    for row in recovered.actions:
        _restore_admission(state, row)
        if not ActionState(row.state).terminal:
            action = _restore_action(state, row, decode, away, now)
            if row.state == ActionState.DISPATCHED.value:
                _await_attempt(state, action, row, now)
            else:
                waiting.append(action)
    _restore_closed(state, recovered.trajectories, away, now)
    _restore_finished(state, recovered.actions, away, now)
    _restore_buffers(state, recovered, decode, now)
    for action in waiting:
        await_turn(state, action, now)
    for drain in recovered.drains:
        state.awaited.setdefault(drain.manager_id, Awaited()).drain = drain
    for manager_id in state.awaited:
        state.timers.set(("manager", manager_id), now + state.settings.manager_lease)
    state.summaries.restore(recovered.finished, recovered.closed, now)


def _restore_rollout(state: SchedulerState, row: RecoveredRollout, decode: RequestDecoder) -> None:
    """Its engines say how far they are when they register."""
    offer = replace(decode.weights(row.plan), service=row.service)
    token = Token(row.epoch, row.sequence)
    state.rollouts[row.service] = WeightsRollout(token, row.job_id, row.version, offer, row.reference, row.begun)


def _restore_forgotten(job: Job, entries: bytes) -> None:
    job.forgotten.add(entries)
    job.completed_trajectories += completed_of(entries)
    if len(job.forgotten):
        note_generation(job, "")
    for ended_as, count in states_of(entries).items():
        job.state_counts[ended_as] = job.state_counts.get(ended_as, 0) + count


def _time_away(state: SchedulerState, recovered: Recovered, now: float) -> TimeAway:
    """When no scheduler ran. This time is journalled where there is anything that it concerns."""
    times = [row.submitted_at if row.finished_at is None else row.finished_at for row in recovered.actions]
    times += [row.closed_at for row in recovered.trajectories if row.closed_at is not None]
    since = min(recovered.alive_at or 0.0, now)
    if times:
        state.persist(SchedulerAway(state.epoch, since, now, min(times)))
    return TimeAway([(began, min(until, now)) for began, until in (*recovered.away, (since, now))])


def _restore_closed(state: SchedulerState, rows: Sequence[RecoveredTrajectory], away: TimeAway, now: float) -> None:
    ended_at: dict[str, dict[str, float]] = {job_id: {} for job_id in state.jobs}
    for row in rows:
        if row.closed_at is not None:
            closed_at = min(row.closed_at, now)
            ended_at[row.job_id][row.trajectory_id] = closed_at + away.after(closed_at)
    for job_id, job in state.jobs.items():
        restore_closed(state, job, ended_at[job_id])


def _restore_finished(state: SchedulerState, rows: Sequence[RecoveredAction], away: TimeAway, now: float) -> None:
    finished = []
    for row in rows:
        if ActionState(row.state).terminal:
            ended_at = min(now if row.finished_at is None else row.finished_at, now)
            trajectory = state.find_trajectory(row.job_id, row.trajectory_id)
            kept = FinishedAction(
                row.body_hash,
                ActionState(row.state),
                ended_at + away.after(ended_at),
                row.outcome_bytes,
                row.trajectory_id if trajectory is not None and not trajectory.had_sandbox else "",
            )
            finished.append((kept.finished_at, row, kept))
    for _, row, kept in sorted(finished, key=itemgetter(0)):
        job = state.jobs[row.job_id]
        job.state_counts[kept.state] = job.state_counts.get(kept.state, 0) + 1
        # The journal does not tell where it ran.
        note_generation(job, "")
        keep(state, job, row.action_id, kept)


def _restore_buffers(state: SchedulerState, recovered: Recovered, decode: RequestDecoder, now: float) -> None:
    """Leases begin anew: nobody could acknowledge meanwhile."""
    for row in recovered.buffered:
        finished = BufferedTrajectory(
            row.trajectory_id,
            row.group_id,
            row.number,
            row.policy_version,
            row.opened_at,
            row.finished_at,
            decode.result(row.result),
        )
        state.jobs[row.job_id].buffer.add(finished)
    for job in state.jobs.values():
        restore_whole(state, job, now)
    for batch in recovered.batches:
        restore_batch(state, batch, now)


def _restore_job(state: SchedulerState, row: RecoveredJob, decode: RequestDecoder, now: float) -> None:
    """Its clients have a manager's lease to come back before the clock of its own lease goes on."""
    begun_after = Token(row.begun_epoch, row.begun_sequence)
    job = Job(decode.job(row.spec), row.policy_version, begun_after, opened_at=row.opened_at)
    job.lease.expired, job.lease.left = row.expired, row.left
    add_job(state, job)
    worked(state, job, now)
    begin(state, job, now, still_for=state.settings.manager_lease)
    job.account = row.cost or Account()
    state.resting.change_rate(NOTHING, job.account.rate, now)


def _restore_trajectory(state: SchedulerState, row: RecoveredTrajectory, decode: RequestDecoder, now: float) -> None:
    job = state.jobs[row.job_id]
    request = decode.trajectory(row.spec)
    group = group_of(job, request)
    if group is not None:
        group.cancelled = group.cancelled or row.group_cancelled
    if row.end:
        end = TrajectoryEnd(row.end)
        add_closed(job, request, end, row.reason, row.policy_version, cost=(row.cost or Account()).spent)
        job.trajectory_specs[row.trajectory_id] = row.spec
        count_open(state, job, request)
        if group is not None:
            count_closed(group, row.trajectory_id, end)
            if end is TrajectoryEnd.COMPLETED or row.had_sandbox or row.began:
                note_begun(job, job.closed_trajectories[row.trajectory_id].group_id)
        return
    # A clock that was set back since must not put deadlines off.
    trajectory = add_trajectory(state, job, request, row.policy_version, now, opened_at=min(row.opened_at, now))
    trajectory.command_timeout = row.command_timeout
    trajectory.sandbox_id, trajectory.manager_id = row.sandbox_id, row.manager_id
    trajectory.held, trajectory.held_cores = dict(row.held), row.held_cores
    # Saying "lost" lets an env_step fail as data instead of as a refusal.
    trajectory.lost = not row.sandbox_id
    trajectory.had_sandbox = row.had_sandbox or bool(row.sandbox_id)
    trajectory.died = row.died
    trajectory.began_kept = row.began
    trajectory.account = row.cost or Account()
    if row.manager_id:
        state.awaited.setdefault(row.manager_id, Awaited()).trajectories.append(trajectory)
    if row.had_sandbox or row.sandbox_id or row.began:
        _mark_admitted(trajectory)


def _restore_admission(state: SchedulerState, row: RecoveredAction) -> None:
    """A trajectory that had anything dispatched, or ever had a sandbox, had begun; when that was is not kept."""
    if not row.attempt:
        return
    job = state.jobs[row.job_id]
    trajectory, closed = job.trajectories.get(row.trajectory_id), job.closed_trajectories.get(row.trajectory_id)
    if trajectory is not None:
        _mark_admitted(trajectory)
    elif closed is not None:
        note_begun(job, closed.group_id)


def _mark_admitted(trajectory: Trajectory) -> None:
    if trajectory.admitted_at is None:
        trajectory.admitted_at = 0.0
        count_live(trajectory, 1)


def _restore_action(
    state: SchedulerState, row: RecoveredAction, decode: RequestDecoder, away: TimeAway, now: float
) -> Action:
    job = state.jobs[row.job_id]
    request = decode.action(row.spec)
    if row.copies_sandbox:
        request = replace(request, in_sandbox=True)
    trajectory = job.trajectories.get(row.trajectory_id) or job.closing.get(row.trajectory_id)
    if trajectory is None and row.trajectory_id:
        closed = decode.trajectory(job.trajectory_specs[row.trajectory_id])
        trajectory = Trajectory(closed, job, job.policy_version, now, now, lost=True, admitted_at=0.0)
        trajectory.account.spent = job.closed_trajectories[row.trajectory_id].cost
        job.closing[row.trajectory_id] = trajectory
    action = add_action(state, job, request, trajectory, now)
    # A clock that was set back since must not put deadlines off.
    action.submitted_at = min(row.submitted_at, now)
    action.away_s = away.after(action.submitted_at)
    action.no_deadline_before = now + state.settings.manager_lease
    timeouts = action.request.timeouts
    first_deadline = action.deadline(min(timeouts.schedule_to_start, timeouts.schedule_to_close))
    state.timers.set(("action", request.key), first_deadline)
    action.attempts = row.attempt
    if not row.attempt:
        action.queue_s = max(now - action.submitted_at - action.away_s, 0.0)
    action.tell(now, "recovered after a restart of the scheduler")
    return action


def _await_attempt(state: SchedulerState, action: Action, row: RecoveredAction, now: float) -> None:
    token = Token(row.epoch, row.sequence)
    attempt = Attempt(token, action, row.manager_id, None, "", row.attempt, now, last_progress=now)
    attempt.of_unknown_process = row.incarnation == UNKNOWN
    state.attempts[token] = attempt
    awaited = state.awaited.setdefault(row.manager_id, Awaited())
    awaited.attempts.setdefault(row.incarnation, []).append(attempt)
    action.attempt = attempt
    action.change(RECOVERED)
    action.first_dispatched_at = now
    trajectory = action.trajectory
    if action.request.in_sandbox and trajectory is not None:
        trajectory.occupied = attempt
    if row.cancel_reason:
        action.cancel_reason = row.cancel_reason
        stop_attempt(state, attempt, row.cancel_reason, now)
