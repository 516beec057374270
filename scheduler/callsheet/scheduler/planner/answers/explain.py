"""Why an action waits: what the next round would do with it, what it lacks, and who holds that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from callsheet.scheduler.core.jobs.pacing import PacingGate
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.entities import Action, Attempt, Job, Manager, Trajectory
from callsheet.scheduler.core.state.scheduler_state import ReadyQueue, SchedulerState
from callsheet.scheduler.core.words.events import Plan
from callsheet.scheduler.core.words.model import ActionState
from callsheet.scheduler.core.work.servability import awaited_roles, service_of
from callsheet.scheduler.planner.protocol import Reviewer
from callsheet.scheduler.planner.round.admission import reset_of
from callsheet.scheduler.planner.round.review import Left, Review, Shortage, WaitReason


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason, the same as a sentence, and what is short."""

    reason: WaitReason
    sentence: str
    shortages: tuple[Shortage, ...] = ()


def explain(
    state: SchedulerState,
    action: Action,
    now: float,
    planner: Reviewer,
    sees_job: Callable[[str], bool] = lambda _: True,
) -> Explanation:
    """Says why an action is where it is; see `explain_in_parts`."""
    return at_once(explain_in_parts(state, action, now, planner, sees_job))


def explain_in_parts(
    state: SchedulerState,
    action: Action,
    now: float,
    planner: Reviewer,
    sees_job: Callable[[str], bool] = lambda _: True,
) -> Generator[None, None, Explanation]:
    """Says why an action is where it is, of which the state may change a little between two parts.

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
    """Why the next round leaves an action."""
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


# Who holds what a waiting action lacks.

MAX_HOLDERS = 20
SLOTS = "slots"


class Liveness(NamedTuple):
    """Whether a job's client lives: its sessions now, and the seconds until it expires; None while it cannot."""

    sessions: int
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """An action that runs, or a trajectory between its actions, and what it holds.

    Attributes:
        action_id: Empty where a trajectory holds units between its actions.
        trajectory_id: Empty if it has none.
        units: By resource; `SLOTS` are those of a service.
        held_s: For how long, in seconds.
    """

    job_id: str
    action_id: str
    trajectory_id: str
    node_id: str
    units: Mapping[str, float]
    held_s: float
    liveness: Liveness


def liveness_of(job: Job, now: float) -> Liveness:
    """Whether client sessions hold a job, and how long it lives on where none does."""
    ends_at = None if job.lease.expired else job.lease.ends_at
    return Liveness(len(job.lease.sessions), None if ends_at is None else max(0.0, ends_at - now))


def holders(state: SchedulerState, action: Action, explanation: Explanation, now: float) -> tuple[Holder, ...]:
    """Who holds what an action lacks; see `holders_in_parts`."""
    return at_once(holders_in_parts(state, action, explanation, now))


def holders_in_parts(
    state: SchedulerState, action: Action, explanation: Explanation, now: float
) -> Generator[None, None, tuple[Holder, ...]]:
    """Who holds what an action lacks, the longest first, at most `MAX_HOLDERS`.

    Args:
        state: The core.
        action: An action without an outcome.
        explanation: Why it waits.
        now: Seconds since the epoch.
    """
    match explanation.reason:
        case WaitReason.SLOTS:
            found = _of_slots(state, action, now)
        case WaitReason.EARLIER_IN_SANDBOX:
            found = _in_sandbox(action, now)
        case WaitReason.RESOURCES | WaitReason.ADMISSION if explanation.shortages:
            short = {each.resource for each in explanation.shortages}
            found = _of_units(state, explanation.shortages[0].node_id, short, now)
        case WaitReason.RESOURCES:
            found = _of_scattered_units(state, action, now)
        case _:
            return ()
    longest: list[Holder] = []
    for holder in found:
        if holder is not None:
            longest = sorted([*longest, holder], key=lambda each: -each.held_s)[:MAX_HOLDERS]
        yield
    return tuple(longest)


def _of_slots(state: SchedulerState, action: Action, now: float) -> Iterator[Holder | None]:
    for manager, service in _serving(state, action):
        yield None
        for attempt in list(manager.attempts.values()):
            if attempt.service == service:
                yield _attempt(attempt, manager.node.node_id, {SLOTS: 1.0}, now)


def _in_sandbox(action: Action, now: float) -> Iterator[Holder | None]:
    attempt = action.trajectory.occupied if action.trajectory is not None else None
    if attempt is not None:
        node_id = attempt.manager.node.node_id if attempt.manager is not None else ""
        yield _attempt(attempt, node_id, attempt.granted, now)


def _of_scattered_units(state: SchedulerState, action: Action, now: float) -> Iterator[Holder | None]:
    """Enough units are free on these nodes, but they do not lie together."""
    needed = action.request.demand.minimum().keys()
    for node_id in dict.fromkeys(manager.node.node_id for manager, _ in _serving(state, action)):
        yield from _of_units(state, node_id, needed, now)


def _of_units(state: SchedulerState, node_id: str, resources: Collection[str], now: float) -> Iterator[Holder | None]:
    node = state.nodes.get(node_id)
    for manager_id in list(node.managers) if node is not None else ():
        manager = state.managers.get(manager_id)
        yield None
        if manager is None:
            continue
        for attempt in list(manager.attempts.values()):
            if units := _among(attempt.units, resources):
                yield _attempt(attempt, node_id, units, now)
        for trajectory in list(manager.sandboxes.values()):
            if units := _among(trajectory.booked, resources):
                yield _trajectory(trajectory, node_id, units, now)


def _serving(state: SchedulerState, action: Action) -> Iterable[tuple[Manager, str]]:
    request = action.request
    for manager in list(state.managers.values()):
        service = service_of(manager, request.kind, request.service) if manager.takes(request.needs_sandbox) else None
        if service is not None:
            yield manager, service.description.name


def _among(units: Mapping[str, int], resources: Collection[str]) -> dict[str, float]:
    return {resource: float(count) for resource, count in units.items() if count and resource in resources}


def _attempt(attempt: Attempt, node_id: str, units: Mapping[str, float], now: float) -> Holder:
    action = attempt.action
    held_s = now - attempt.dispatched_at
    liveness = liveness_of(action.job, now)
    return Holder(*action.key, action.request.trajectory_id, node_id, units, held_s, liveness)


def _trajectory(trajectory: Trajectory, node_id: str, units: Mapping[str, float], now: float) -> Holder:
    """What a sandbox keeps; when a trajectory that began before a restart did so is not known, its last use is."""
    job_id, trajectory_id = trajectory.key
    action_id = trajectory.occupied.action.key.action_id if trajectory.occupied is not None else ""
    held_s = now - (trajectory.admitted_at or trajectory.last_activity)
    return Holder(job_id, action_id, trajectory_id, node_id, units, held_s, liveness_of(trajectory.job, now))
