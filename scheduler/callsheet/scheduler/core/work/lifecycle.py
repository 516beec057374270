"""The steps of an action's life that several events share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from callsheet.scheduler.core.jobs.final_close import last_action_over
from callsheet.scheduler.core.jobs.retention import keep
from callsheet.scheduler.core.state.entities import (
    Action,
    Attempt,
    FinishedAction,
    Job,
    LastAttempt,
    Manager,
    Trajectory,
)
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.transitions import CANCELLED, EXPIRED, FAILED, REQUEUED, SUCCEEDED, Change
from callsheet.scheduler.core.words.commands import (
    CancelAttempt,
    Cancellation,
    Deliver,
    Expiry,
    OutcomeFacts,
    OutcomeResult,
    ReleaseSandbox,
)
from callsheet.scheduler.core.words.costs import NOTHING
from callsheet.scheduler.core.words.events import AttemptCancelled, AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionRequest, ActionState, FailureKind
from callsheet.scheduler.core.words.records import (
    KEPT_SPEC_BYTES,
    ActionCancelRequested,
    ActionFinished,
    ActionRequeued,
    TrajectoryPlaced,
)
from callsheet.scheduler.core.work.admission_counts import note_waiting
from callsheet.scheduler.core.work.costs import note_resting
from callsheet.scheduler.core.work.endings import in_brackets, reason_of, summary_of
from callsheet.scheduler.core.work.resizing import note_dropped
from callsheet.timing.waits import SHORTEST_WAIT_S, Cause

RETRIED = frozenset({FailureKind.INFRA, FailureKind.QUOTA})
STATE_LOST = AttemptFailed(
    FailureKind.INFRA, "state_lost", "the sandbox of the trajectory is gone; reset it to go on with a fresh one"
)

NOT_COPIED = AttemptFailed(
    FailureKind.ENV,
    "unservable",
    "the manager of the trajectory's sandbox cannot copy it for a fresh one: give an image, or run in the sandbox",
)
_DIED_BEFORE = replace(
    STATE_LOST,
    kind=FailureKind.ENV,
    message="the sandbox of the trajectory died while a command ran in it; reset it to go on with a fresh one",
)

_ENDS: dict[type, Change] = {
    AttemptSucceeded: SUCCEEDED,
    AttemptFailed: FAILED,
    AttemptCancelled: CANCELLED,
    Cancellation: CANCELLED,
    Expiry: EXPIRED,
}


def await_turn(state: SchedulerState, action: Action, now: float) -> None:
    """Lets a queued action wait for its trajectory's admission, its turn in the sandbox, its backoff or the planner."""
    trajectory = action.trajectory
    if trajectory is not None and trajectory.admitted_at is None:
        job_id, trajectory_id = trajectory.key
        state.waiting_trajectories.setdefault(job_id, {}).setdefault(trajectory_id, trajectory)
        note_waiting(trajectory, waits=True)
        if not action.request.in_sandbox:
            return
    if action.request.in_sandbox and trajectory is not None:
        advance_line(state, trajectory, now)
    elif action.backoff_until > now:
        state.timers.set(("backoff", action.key), action.backoff_until)
    else:
        state.ready.add(action)


def leave_admission_queue(state: SchedulerState, trajectory: Trajectory) -> None:
    """Takes a trajectory out of those that wait for admission, if it is among them."""
    job_id, trajectory_id = trajectory.key
    waiting = state.waiting_trajectories.get(job_id)
    if waiting is not None and waiting.pop(trajectory_id, None) is not None:
        note_waiting(trajectory, waits=False)
        if not waiting:
            del state.waiting_trajectories[job_id]


def advance_line(state: SchedulerState, trajectory: Trajectory, now: float) -> None:
    """Makes the first action that waits for the sandbox ready, once its trajectory may begin and nothing else is in it.

    One whose sandbox is gone, with no reset ahead of it, has its outcome.
    """
    while trajectory.line and trajectory.occupied is None:
        head = trajectory.line[0]
        if head.ready_ticket:
            return
        if head.backoff_until > now:
            state.timers.set(("backoff", head.key), head.backoff_until)
            return
        if head.request.needs_sandbox and not trajectory.sandbox_id:
            finish(state, head, _blamed(trajectory.job, _DIED_BEFORE) if trajectory.died else STATE_LOST, now)
            continue
        if head.request.copies_sandbox and not _can_copy(state, head, trajectory):
            finish(state, head, NOT_COPIED, now)
            continue
        if trajectory.admitted_at is None:
            return
        if not head.request.needs_sandbox and trajectory.sandbox_id:
            drop_sandbox(state, trajectory, now, lost=False)
        state.ready.add(head)
        return


def _can_copy(state: SchedulerState, action: Action, trajectory: Trajectory) -> bool:
    """Returns whether the manager that holds a sandbox can copy it; one that has not registered again yet, can."""
    manager = state.managers.get(trajectory.manager_id)
    service = manager.services.get(action.request.service) if manager is not None else None
    return service is None or service.description.copies_sandboxes


def attempt_deadline(state: SchedulerState, attempt: Attempt) -> float:
    """When the scheduler should look after an attempt: missed heartbeats, or long past its execution time."""
    timeouts = attempt.action.request.timeouts
    if attempt.clock_at:
        # Since it was told, its clock went no faster than time.
        backstop = attempt.clock_at + timeouts.start_to_close - attempt.clock_s
    else:
        backstop = (attempt.started_at or attempt.dispatched_at) + timeouts.start_to_close
    backstop += state.settings.timeout_grace
    return min(backstop, attempt.last_progress + timeouts.heartbeat) if timeouts.heartbeat else backstop


def arm_attempt(state: SchedulerState, attempt: Attempt) -> None:
    """Arms the deadline of an attempt, unless its action's comes first anyway or it must stop by another already."""
    if attempt.cancel_sent:
        return
    deadline = attempt_deadline(state, attempt)
    action_deadline = state.timers.get(("action", attempt.action.key))
    if action_deadline is None or deadline < action_deadline:
        state.timers.set(("attempt", attempt.token), deadline)


def drop_attempt(state: SchedulerState, attempt: Attempt, now: float) -> None:
    """Gives back what an attempt holds and lets the next action into its sandbox."""
    state.attempts.pop(attempt.token, None)
    note_dropped(state, attempt)
    state.timers.drop(("attempt", attempt.token))
    if attempt.action.attempt is attempt:
        attempt.action.attempt = None
    manager = attempt.manager
    if manager is not None and manager.drop(attempt.token):
        service = manager.services[attempt.service]
        service.busy -= 1
        service.kv_booked -= attempt.kv_tokens
        manager.node.give_back(attempt.units, attempt.cores)
    trajectory = attempt.action.trajectory
    if trajectory is not None and trajectory.occupied is attempt:
        trajectory.occupied = None
        advance_line(state, trajectory, now)


def install_sandbox(state: SchedulerState, attempt: Attempt, sandbox_id: str, held_mib: int, now: float) -> None:
    """Makes the sandbox that an env_reset created its trajectory's; what the sandbox keeps stays booked for it."""
    trajectory, manager = attempt.action.trajectory, attempt.manager
    if trajectory is None or manager is None:
        raise AssertionError("an env_reset has a trajectory, and a manager that ran it")
    kept = {entry.resource for entry in attempt.action.request.demand.entries if entry.held_by_trajectory}
    booked = {resource: units for resource, units in attempt.units.items() if resource in kept}
    trajectory.held = {resource: attempt.granted[resource] for resource in booked}
    attempt.units = {resource: units for resource, units in attempt.units.items() if resource not in kept}
    if CPU in kept:
        trajectory.held_cores, attempt.cores = attempt.cores, ()
    trajectory.sandbox_id, trajectory.manager_id = sandbox_id, manager.manager_id
    trajectory.lost = trajectory.died = False
    trajectory.had_sandbox = True
    trajectory.made_as = attempt.action.request.label
    manager.sandboxes[trajectory.key] = trajectory
    note_held(state, trajectory, manager, held_mib, now, booked=booked)
    _persist_place(state, trajectory)


def note_held(
    state: SchedulerState,
    trajectory: Trajectory,
    manager: Manager,
    held_mib: int,
    now: float,
    *,
    booked: Mapping[str, int] | None = None,
) -> None:
    """Books a sandbox by the memory that its manager tells it to hold, 0 for its demand.

    Args:
        state: The scheduler's state.
        trajectory: Whose sandbox it is.
        manager: Which has it.
        held_mib: What it holds between actions, in MiB; 0 if that is not told.
        now: Seconds since the epoch.
        booked: What is booked for it; None for what it told last.
    """
    before = (trajectory.booked if booked is None else booked).get(MEMORY, 0)
    trajectory.held_mib = held_mib
    trajectory.most_held_mib = max(trajectory.most_held_mib, held_mib)
    note_resting(state, trajectory, now)
    less = before - trajectory.booked.get(MEMORY, 0)
    if less:
        manager.node.give_back({MEMORY: less}, ())
    if held_mib and not manager.by_need:
        manager.by_need = True
        state.fleet_changed(manager.node)


def drop_sandbox(state: SchedulerState, trajectory: Trajectory, now: float, *, lost: bool) -> None:
    """Parts a trajectory from its sandbox: `lost` if it is gone already, else the manager is told to destroy it."""
    manager = state.managers.get(trajectory.manager_id)
    if manager is not None and manager.sandboxes.pop(trajectory.key, None) is not None:
        manager.node.give_back(trajectory.booked, trajectory.held_cores)
        if manager.session is not None:
            state.emit(ReleaseSandbox(manager.session, trajectory.sandbox))
    trajectory.sandbox_id = trajectory.manager_id = ""
    if trajectory.most_held_mib:
        state.held_memory.learn(trajectory.key[0], trajectory.made_as, trajectory.most_held_mib)
    trajectory.held, trajectory.held_cores = {}, ()
    trajectory.held_mib = trajectory.most_held_mib = 0
    trajectory.lost = lost
    note_resting(state, trajectory, now)
    _persist_place(state, trajectory)
    if trajectory.line and trajectory.line[0].request.needs_sandbox:
        state.ready.remove(trajectory.line[0])
        advance_line(state, trajectory, now)


def _persist_place(state: SchedulerState, trajectory: Trajectory) -> None:
    job_id, trajectory_id = trajectory.key
    state.persist(
        TrajectoryPlaced(
            job_id,
            trajectory_id,
            trajectory.sandbox_id,
            trajectory.manager_id,
            dict(trajectory.held),
            trajectory.held_cores,
            trajectory.died,
        )
    )


def note_death(state: SchedulerState, action: Action, failed: AttemptFailed) -> AttemptFailed:
    """Notes that an action ended with its sandbox, if it did; returns the failure as its job wants it told."""
    trajectory = action.trajectory
    died = failed.kind is FailureKind.ENV and failed.reason == STATE_LOST.reason
    # Files may have filled its memory until nothing was left of it.
    full = failed.kind is FailureKind.RESOURCE_LIMIT
    if trajectory is not None and (died or (full and trajectory.lost)):
        trajectory.died = True
        _persist_place(state, trajectory)
    if not died:
        return failed
    action.job.dead_sandboxes += 1
    return _blamed(action.job, failed)


def _blamed(job: Job, failed: AttemptFailed) -> AttemptFailed:
    return replace(failed, kind=FailureKind.INFRA) if job.request.dead_sandbox_is_infra else failed


def end_unsuccessfully(
    state: SchedulerState, action: Action, failed: AttemptFailed, now: float, last: LastAttempt
) -> None:
    """Handles the end of an attempt that failed or came too late; an earlier verdict or cancel outranks the failure."""
    verdict = action.verdict
    if isinstance(verdict, AttemptFailed | Cancellation):
        finish(state, action, replace(verdict, partial=failed.partial), now, last)
    elif verdict is not None:
        finish(state, action, verdict, now, last)
    elif action.cancel_reason is not None:
        finish(state, action, Cancellation(action.cancel_reason, failed.partial), now, last)
    else:
        fail_or_retry(state, action, failed, now, last)


def fail_or_retry(state: SchedulerState, action: Action, failed: AttemptFailed, now: float, last: LastAttempt) -> None:
    """Ends an action with a failure, or puts it back in the queue where its kind and policy allow another attempt."""
    may_repeat = not last.started or _is_repeatable(action.request, failed)
    if failed.kind in RETRIED and may_repeat and action.attempts < action.request.retry.max_attempts:
        backoff = max(action.request.retry.backoff(action.attempts), failed.retry_after)
        action.tell(now, f"attempt {action.attempts} failed ({failed.reason}); again in {backoff:.1f} s")
        action.backoff_until = now + backoff
        action.failed_on = last.attempt.manager_id
        state.persist(ActionRequeued(*action.key, action.attempts))
        action.change(REQUEUED)
        action.queued_since = now
        await_turn(state, action, now)
    else:
        finish(state, action, failed, now, last)


def _is_repeatable(request: ActionRequest, failed: AttemptFailed) -> bool:
    """Returns whether another attempt may follow one that may have begun. A call that a quota refused never began."""
    if request.changes_sandbox:
        return False
    return not request.called_once or failed.kind is FailureKind.QUOTA


def stop_attempt(state: SchedulerState, attempt: Attempt, reason: str, now: float) -> None:
    """Orders a manager to end an attempt, once; after the grace the action gets its outcome without it."""
    if attempt.cancel_sent:
        return
    attempt.cancel_sent = True
    state.timers.set(("attempt", attempt.token), now + state.settings.cancel_grace)
    if attempt.manager is not None and attempt.manager.session is not None:
        state.emit(CancelAttempt(attempt.manager.session, attempt.token, reason))


def detach_attempt(state: SchedulerState, action: Action, attempt: Attempt, reason: str, now: float) -> None:
    """Parts an action from an attempt that is still running; the attempt is stopped and keeps its units until it ends.

    What it may still do to its sandbox is unknown, so the sandbox is destroyed, unless it has one of its own. The
    caller finishes the action or puts it back in the queue, which lets the line of the sandbox advance.
    """
    stop_attempt(state, attempt, reason, now)
    action.attempt = None
    action.detached = True
    trajectory = action.trajectory
    if trajectory is not None and trajectory.occupied is attempt:
        if not action.request.copies_sandbox:
            if trajectory.sandbox_id:
                drop_sandbox(state, trajectory, now, lost=True)
            trajectory.lost = True
        # Only now: the action is still the first of its line and would get the outcome of one whose sandbox is gone.
        trajectory.occupied = None


def cancel(state: SchedulerState, action: Action, reason: str, now: float) -> None:
    """Cancels an action: at once if it waits, else by stopping its attempt."""
    if action.cancel_reason is None:
        action.cancel_reason = reason
        action.tell(now, f"cancel requested: {reason}")
        if action.attempt is not None:
            state.persist(ActionCancelRequested(*action.key, reason))
    if action.attempt is None:
        finish(state, action, Cancellation(reason), now)
    else:
        stop_attempt(state, action.attempt, reason, now)


def finish(
    state: SchedulerState, action: Action, result: OutcomeResult, now: float, last: LastAttempt | None = None
) -> None:
    """Gives an action its one outcome.

    Args:
        state: The scheduler's state.
        action: An action without an outcome.
        result: What became of it.
        now: Seconds since the epoch.
        last: Its last attempt, if there was one.
    """
    waited_s = now - action.queued_since if action.state is ActionState.QUEUED else 0.0
    trajectory = action.trajectory
    admitted = trajectory is None or trajectory.admitted_at is not None
    key = action.request.key
    action.change(_ENDS[type(result)])
    state_name = action.state.value
    ended = last.attempt if last is not None else None
    facts = OutcomeFacts(
        key=key,
        kind=action.request.kind,
        state=action.state,
        result=result,
        usage=last.usage if last is not None else None,
        attempts=action.attempts,
        manager_id=ended.manager_id if ended is not None else "",
        submitted=action.submitted_at,
        first_dispatched=action.first_dispatched_at,
        dispatched=ended.dispatched_at if ended is not None else 0.0,
        started=ended.started_at if ended is not None else 0.0,
        ended=now,
        queue_s=action.queue_s + waited_s,
        execution_s=last.execution_s if last is not None else 0.0,
        start_wait_s=action.start_wait_s if admitted else waited_s,
        cost=action.cost or NOTHING,
        node_id=ended.manager.node.node_id if ended is not None and ended.manager is not None else "",
    )
    _note_waits(action, last, facts, now - waited_s)
    for cause, seconds in facts.waited_s.items():
        action.tell(now, f"waited {seconds:.3f} s: {cause}")
    encoded = state.encode_outcome(facts)
    failure, reason = reason_of(result)
    action.tell(now, f"outcome: {state_name}{in_brackets(failure, reason)}")
    summary = summary_of(action, facts, failure, reason)
    state.summaries.add(summary)
    size = len(action.request.spec)
    kept = size if size <= KEPT_SPEC_BYTES else 0
    about = action.request.trajectory_id
    state.persist(ActionFinished(*key, state_name, encoded, now, summary, bool(kept), about))
    if action.watchers:
        state.emit(Deliver(tuple(action.watchers), key, encoded))
    if isinstance(result, AttemptFailed):
        _count_failure(action.job, result)
    _forget(state, action, len(encoded) + kept, now)


def _note_waits(action: Action, last: LastAttempt | None, facts: OutcomeFacts, until: float) -> None:
    """Notes what an action waited for after its first dispatch, until it was queued for the last time or ended."""
    began, told = until, False
    if last is not None and last.waited_s is not None:
        began, told = last.attempt.dispatched_at, True
        facts.waited_s = dict(last.waited_s)
    # Its manager may have begun to execute it before a restart.
    others_s = min(began - action.submitted_at - action.queue_s, facts.overhead_s)
    if others_s >= SHORTEST_WAIT_S:
        cause = Cause.ATTEMPTS if action.attempts > told else Cause.SCHEDULER
        facts.waited_s[cause.value] = others_s


def _count_failure(job: Job, failed: AttemptFailed) -> None:
    kind = failed.kind.name.lower()
    job.failure_counts[kind] = job.failure_counts.get(kind, 0) + 1


def _forget(state: SchedulerState, action: Action, kept_bytes: int, now: float) -> None:
    job, key, trajectory = action.job, action.request.key, action.trajectory
    state.ready.remove(action)
    state.timers.drop(("action", key))
    if action.backoff_until:
        state.timers.drop(("backoff", key))
    state.open_actions -= 1
    job.open_actions -= 1
    size = len(action.request.spec)
    state.open_bytes -= size
    job.open_bytes -= size
    job.active_at = now
    if action.detached:
        # An attempt that never ends would keep its body, which nobody counts any more.
        action.request = replace(action.request, spec=b"")
    tells_of = action.request.trajectory_id if trajectory is not None and not trajectory.had_sandbox else ""
    finished = FinishedAction(action.request.body_hash, action.state, now, kept_bytes, tells_of)
    keep(state, job, key.action_id, finished)
    if trajectory is None:
        return
    trajectory.last_activity = now
    trajectory.open_actions.pop(key.action_id, None)
    if action in trajectory.line:
        trajectory.line.remove(action)
        advance_line(state, trajectory, now)
    if trajectory.open_actions:
        return
    last_action_over(state, trajectory, now)
    if trajectory.admitted_at is None:
        leave_admission_queue(state, trajectory)
