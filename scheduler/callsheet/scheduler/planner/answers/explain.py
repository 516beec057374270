"""Why an action waits: what the next round would do with it, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from callsheet.scheduler.core.entities import Action, Manager, Service, Trajectory
from callsheet.scheduler.core.model import ActionState
from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.quotas import TokenBucket
from callsheet.scheduler.core.ready import ReadyQueue
from callsheet.scheduler.core.servability import awaited_roles, can_ever_serve, service_of
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.protocol import Reviewer
from callsheet.scheduler.planner.round.sandbox_room import reset_of


class WaitReason(IntEnum):
    """Why an action is not running; the numbers are the contract's."""

    NONE = 0
    NEXT_ROUND = 1
    EARLIER_IN_SANDBOX = 2
    NO_SERVICE = 3
    MANAGER_AWAY = 4
    RESOURCES = 5
    SLOTS = 6
    HELD_FOR_OLDER = 7
    BACKOFF = 8
    RECOVERY = 9
    ADMISSION = 10
    QUOTA = 11
    OTHERS_FIRST = 12


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is short on a node, in units."""

    resource: str
    needed: int
    free: int
    capacity: int
    node_id: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason, the same as a sentence, and what is short."""

    reason: WaitReason
    sentence: str
    shortages: tuple[Shortage, ...] = ()


def explain(state: SchedulerState, action: Action, now: float, planner: Reviewer) -> Explanation:
    """Says why an action is where it is.

    Args:
        state: The scheduler's state.
        action: An action without an outcome.
        now: Seconds since the epoch.
        planner: Whose next round it waits for.
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
        sentence = f"its manager is on its way: {who} was announced and has not registered yet"
        return Explanation(WaitReason.NO_SERVICE, sentence)
    trajectory = action.trajectory
    if trajectory is not None and trajectory.admitted_at is None:
        return _explain_admission(state, trajectory, action, planner.review(state, now).plan)
    if not action.ready_ticket:
        return _explain_not_ready(action, now)
    key = ReadyQueue.key_of(action)
    if key.pinned_to:
        pinned = state.managers.get(key.pinned_to)
        if pinned is None or not pinned.accepting:
            return Explanation(WaitReason.MANAGER_AWAY, f"its sandbox is on {key.pinned_to}, which is away")
        candidates = [pinned]
    else:
        candidates = list(state.managers.values())
    able = [manager for manager in candidates if can_ever_serve(manager, key.kind, key.service, key.demand)]
    if not able:
        return Explanation(
            WaitReason.NO_SERVICE,
            f"none of {len(candidates)} managers serves {key.kind.name.lower()} {key.service!r} with {_units(action)}",
        )
    accepting = [manager for manager in able if manager.accepting]
    if not accepting:
        return Explanation(WaitReason.MANAGER_AWAY, f"all {len(able)} managers that can serve it are away or draining")
    review = planner.review(state, now)
    if _is_taken(action, review.plan):
        return _TAKEN
    older = review.kept_for.get(state.ready.class_of(action).key)
    return _explain_room(state, action, accepting, older, now)


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


def _explain_admission(state: SchedulerState, trajectory: Trajectory, action: Action, plan: Plan) -> Explanation:
    if _is_taken(action, plan):
        return _TAKEN
    if trajectory.key in plan.admitted:
        return Explanation(WaitReason.ADMISSION, "the next planning round lets its trajectory begin")
    job_id, trajectory_id = trajectory.key
    waiting = list(state.waiting_trajectories[job_id])
    place = waiting.index(trajectory_id) + 1
    sentence = (
        f"its trajectory may not begin yet: it is number {place} of the {len(waiting)} of its job that wait; "
        f"{trajectory.job.live_trajectories} are live"
    )
    short = _short_for_sandbox(state, trajectory)
    return Explanation(WaitReason.ADMISSION, f"{sentence}; {_missing(short)}" if short else sentence, tuple(short))


def _short_for_sandbox(state: SchedulerState, trajectory: Trajectory) -> list[Shortage]:
    """What a trajectory's sandbox would hold and no node has, on the one that comes closest."""
    reset = reset_of(trajectory)
    if reset is None:
        return []
    request = reset.request
    held = {entry.resource: entry.min_units for entry in request.demand.entries if entry.held_by_trajectory}
    hosts = [
        (manager, service)
        for manager in state.managers.values()
        if manager.accepting and can_ever_serve(manager, request.kind, request.service, request.demand)
        if (service := service_of(manager, request.kind, request.service)) is not None
    ]
    return _nearest_shortages(hosts, held) if hosts else []


def _explain_room(
    state: SchedulerState, action: Action, managers: list[Manager], older: Action | None, now: float
) -> Explanation:
    """Why the next round leaves an action: what is short, for whom it is kept, or that others go first."""
    request = action.request
    with_slots = []
    for manager in managers:
        service = service_of(manager, request.kind, request.service)
        if service is not None and (service.free_slots is None or service.free_slots > 0):
            with_slots.append((manager, service))
    if not with_slots:
        return Explanation(WaitReason.SLOTS, f"all slots of {len(managers)} managers that serve it are taken")
    minimum = request.demand.minimum()
    nearest = _nearest_shortages(with_slots, minimum)
    quotas = state.nodes[nearest[0].node_id].quotas if nearest else {}
    if nearest and all(item.resource in quotas for item in nearest):
        return _explain_quotas(nearest, quotas, now)
    if nearest:
        return Explanation(WaitReason.RESOURCES, _missing(nearest), tuple(nearest))
    fitting = [service for manager, service in with_slots if not _shortages(manager, service.booked(minimum))]
    with_room = [service for service in fitting if not service.no_room]
    if not with_room:
        return Explanation(
            WaitReason.RESOURCES,
            f"{len(fitting)} managers have enough free for it, but not together: none has room for another instance",
        )
    if older is not None:
        return Explanation(
            WaitReason.HELD_FOR_OLDER,
            f"it fits, but units are kept for the older action {older.key.action_id}, which needs {_units(older)}",
        )
    set_up_s = min(service.setup_s for service in with_room)
    if set_up_s > 0.0:
        return Explanation(
            WaitReason.OTHERS_FIRST,
            f"it fits now, but only with a set-up of {set_up_s:.1f} s; the next planning round lets it wait instead",
        )
    return Explanation(
        WaitReason.OTHERS_FIRST,
        "it would fit now, but the next planning round gives the room to others, or lets it wait for a better place",
    )


def _nearest_shortages(hosts: list[tuple[Manager, Service]], needed: dict[str, int]) -> list[Shortage]:
    """What is short on the node that comes closest; nothing where it fits."""
    shortages = [_shortages(manager, service.booked(needed)) for manager, service in hosts]
    return min(shortages, key=lambda short: (len(short), sum(item.needed - item.free for item in short)))


def _missing(short: list[Shortage]) -> str:
    missing = (f"{item.needed} {item.resource} needed, {item.free} of {item.capacity} free" for item in short)
    return f"on {short[0].node_id}: {', '.join(missing)}"


def _explain_quotas(short: list[Shortage], quotas: dict[str, TokenBucket], now: float) -> Explanation:
    missing = ", ".join(
        f"{item.needed} {item.resource} needed, {item.free} there; enough in "
        f"{max(quotas[item.resource].enough_at(item.needed) - now, 0.0):.1f} s at the earliest"
        for item in short
    )
    return Explanation(WaitReason.QUOTA, f"on {short[0].node_id}: {missing}", tuple(short))


def _shortages(manager: Manager, minimum: dict[str, int]) -> list[Shortage]:
    node = manager.node
    return [
        Shortage(resource, units, node.free.get(resource, 0), node.available(resource), node.node_id)
        for resource, units in minimum.items()
        if node.free.get(resource, 0) < units
    ]


def _units(action: Action) -> str:
    return ", ".join(f"{units} {resource}" for resource, units in action.request.demand.minimum().items()) or "no units"
