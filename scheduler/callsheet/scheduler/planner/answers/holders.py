"""Finds the holders of the units that a waiting action lacks."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Action, Attempt, Job, Manager, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.work.servability import service_of
from callsheet.scheduler.planner.answers.explain import Explanation
from callsheet.scheduler.planner.round.review import WaitReason

MAX_HOLDERS = 20
SLOTS = "slots"


class Liveness(NamedTuple):
    """Life of a job's client: its sessions now, and the seconds until it expires; None while it cannot."""

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
    """Returns whether client sessions hold a job, and how long it lives on where none does."""
    ends_at = None if job.lease.expired else job.lease.ends_at
    return Liveness(len(job.lease.sessions), None if ends_at is None else max(0.0, ends_at - now))


def holders_in_parts(
    state: SchedulerState, action: Action, explanation: Explanation, now: float
) -> Generator[None, None, tuple[Holder, ...]]:
    """Returns the holders of the units that an action lacks, the longest first, at most `MAX_HOLDERS`.

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
    """Returns the holder of a sandbox's units, since its trajectory began, or since its last use after a restart."""
    job_id, trajectory_id = trajectory.key
    action_id = trajectory.occupied.action.key.action_id if trajectory.occupied is not None else ""
    held_s = now - (trajectory.admitted_at or trajectory.last_activity)
    return Holder(job_id, action_id, trajectory_id, node_id, units, held_s, liveness_of(trajectory.job, now))
