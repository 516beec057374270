"""Explains why an action waits: the decision of the next round, and the units that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from callsheet.scheduler.core.jobs.pacing import PacingGate
from callsheet.scheduler.core.state.entities import Action, Trajectory
from callsheet.scheduler.core.state.ready import ReadyQueue
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.work.servability import awaited_roles
from callsheet.scheduler.planner.protocol import Reviewer
from callsheet.scheduler.planner.round.review import Left, Review, Shortage, WaitReason
from callsheet.scheduler.planner.round.sandbox_room import reset_of


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason, the same as a sentence, and what is short."""

    reason: WaitReason
    sentence: str
    shortages: tuple[Shortage, ...] = ()


def explain_in_parts(
    state: SchedulerState,
    action: Action,
    now: float,
    planner: Reviewer,
    sees_job: Callable[[str], bool] = lambda _: True,
) -> Generator[None, None, Explanation]:
    """Explains why an action is where it is, in parts; the state may change a little between two of them.

    Args:
        state: The scheduler's state.
        action: An action without an outcome.
        now: Seconds since the epoch.
        planner: Whose next round it waits for.
        sees_job: Whether who asks may hear of a job.
    """
    attempt = action.attempt
    if attempt is not None and attempt.manager is None:
        return Explanation(
            WaitReason.RECOVERY, f"it was running on {attempt.manager_id} before the restart; that manager is awaited"
        )
    if action.state is not ActionState.QUEUED:
        return Explanation(WaitReason.NONE, f"it is {action.state.value}")
    if roles := awaited_roles(state, action):
        who = " or ".join(roles)
        sentence = f"its manager is on its way: {who} has not registered yet"
        return Explanation(WaitReason.NO_SERVICE, sentence)
    trajectory = action.trajectory
    if trajectory is not None and trajectory.admitted_at is None:
        return (yield from _explain_admission(state, trajectory, action, planner.review(state, now)))
    if not action.ready_ticket:
        return _explain_not_ready(action, now)
    home = state.ready.class_of(action).key.pinned_to
    if home and not (home in state.managers and state.managers[home].serves_own):
        return Explanation(WaitReason.MANAGER_AWAY, f"its sandbox is on {home}, which is away")
    review = planner.review(state, now)
    if _is_taken(action, review.plan):
        return _TAKEN
    # Only now: the planner's first round sorts the queue by size.
    left = yield from review.left(state.ready.class_of(action).key, action)
    return _in_words(action, left, now, sees_job)


_TAKEN = Explanation(WaitReason.NEXT_ROUND, "it fits now; the next planning round takes it")


def _is_taken(action: Action, plan: Plan) -> bool:
    return any(each.key == action.key for each in plan.assignments)


def _explain_not_ready(action: Action, now: float) -> Explanation:
    if action.backoff_until > now:
        left = action.backoff_until - now
        return Explanation(WaitReason.BACKOFF, f"attempt {action.attempts} failed; the next one starts in {left:.1f} s")
    trajectory = action.trajectory
    ahead = list(trajectory.line).index(action) if trajectory is not None and action in trajectory.line else 0
    earlier = "1 earlier action has" if ahead == 1 else f"{ahead} earlier actions have"
    return Explanation(WaitReason.EARLIER_IN_SANDBOX, f"{earlier} not ended in its trajectory's sandbox")


def _explain_admission(
    state: SchedulerState, trajectory: Trajectory, action: Action, review: Review
) -> Generator[None, None, Explanation]:
    if _is_taken(action, review.plan):
        return _TAKEN
    if trajectory.key in review.plan.admitted:
        return Explanation(WaitReason.ADMISSION, "the next planning round lets its trajectory begin")
    job_id, trajectory_id = trajectory.key
    gate = PacingGate(state, trajectory.job)
    if not gate.admits(trajectory):
        return Explanation(WaitReason.ADMISSION, f"its trajectory may not begin yet: {gate.reason}")
    waiting = list(state.waiting_trajectories[job_id])
    place = waiting.index(trajectory_id) + 1
    sentence = (
        f"its trajectory may not begin yet: it is number {place} of the {len(waiting)} of its job that wait; "
        f"{trajectory.job.live_trajectories} are live"
    )
    reset = reset_of(trajectory)
    short = (yield from review.short_for_sandbox(ReadyQueue.key_of(reset))) if reset is not None else ()
    return Explanation(WaitReason.ADMISSION, f"{sentence}; {_missing(short)}" if short else sentence, short)


def _in_words(action: Action, left: Left, now: float, sees_job: Callable[[str], bool]) -> Explanation:
    """Returns why the next round leaves an action."""
    match left.reason:
        case WaitReason.NO_SERVICE:
            kind, service = action.request.kind.name.lower(), action.request.service
            sentence = f"none of {left.managers} managers serves {kind} {service!r} with {_units(action)}"
        case WaitReason.MANAGER_AWAY:
            sentence = f"all {left.managers} managers that can serve it are away or draining"
        case WaitReason.WEIGHTS:
            sentence = f"it waits for weights: {left.weights}"
        case WaitReason.SLOTS:
            sentence = f"all slots of {left.managers} managers that serve it are taken"
        case WaitReason.QUOTA:
            sentence = _awaited(left.short, now)
        case WaitReason.RESOURCES if left.short and left.kept:
            sentence = f"{_missing(left.short)}; {left.kept} more are kept for trajectories whose tool calls run: "
            sentence += "its own trajectory is paused at its tool call until there is room"
        case WaitReason.RESOURCES if left.short:
            sentence = _missing(left.short)
        case WaitReason.RESOURCES if left.problem:
            sentence = f"none of {left.managers} managers that serve it can begin now: {left.problem}"
        case WaitReason.RESOURCES:
            sentence = f"{left.managers} managers have enough free for it, but not together: "
            sentence += "none has room for another instance"
        case WaitReason.HELD_FOR_OLDER if left.older is not None:
            older = left.older.key
            which = (
                f"the older action {older.action_id}" if sees_job(older.job_id) else "an older action of another job"
            )
            sentence = f"it fits, but units are kept for {which}, which needs {_units(left.older)}"
        case _ if left.set_up_s > 0.0:
            sentence = f"it fits now, but only with a set-up of {left.set_up_s:.1f} s; "
            sentence += "the next planning round lets it wait instead"
        case _:
            sentence = "it would fit now, but the next planning round gives the room to others, "
            sentence += "or lets it wait for a better place"
    return Explanation(left.reason, sentence, left.short)


def _missing(short: Sequence[Shortage]) -> str:
    missing = (
        f"{item.needed} {item.resource} needed"
        f"{f' of a demand of {item.demanded}' if item.demanded else ''}, {item.free} of {item.capacity} free"
        for item in short
    )
    return f"on {short[0].node_id}: {', '.join(missing)}"


def _awaited(short: Sequence[Shortage], now: float) -> str:
    awaited = (
        f"{item.needed} {item.resource} needed, {item.free} there; enough in "
        f"{max((item.enough_at or now) - now, 0.0):.1f} s at the earliest"
        for item in short
    )
    return f"on {short[0].node_id}: {', '.join(awaited)}"


def _units(action: Action) -> str:
    return ", ".join(f"{units} {resource}" for resource, units in action.request.demand.minimum().items()) or "no units"
