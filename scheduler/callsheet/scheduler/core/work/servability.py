"""Decides if a manager can serve an action at all, now, or once an announced manager is there."""

from __future__ import annotations

from functools import partial

from callsheet.scheduler.core.state.chores import open_actions
from callsheet.scheduler.core.state.entities import Action, Manager, Trajectory
from callsheet.scheduler.core.state.held_memory import units_by_need
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.events import AttemptFailed
from callsheet.scheduler.core.words.model import (
    CPU,
    GPU,
    MEMORY,
    ActionKind,
    ActionRequest,
    ActionState,
    Demand,
    FailureKind,
    ResourceDemand,
)
from callsheet.scheduler.core.words.refusals import RefusedError, failed_precondition
from callsheet.scheduler.core.words.registration import names_image
from callsheet.scheduler.core.words.similar_names import did_you_mean
from callsheet.scheduler.core.work.lifecycle import NOT_COPIED, finish
from callsheet.v1.names import ANY_IMAGE_SERVICE, BUILD_SERVICE, IMAGE_SERVICE_PREFIX

_MOST_SHOWN = 10
_HOW_TO_ADD = "a sandbox manager has what is below its --images, and pulls from each --registry"
_NO_BUILDER = (
    "no registered manager builds images: a sandbox manager with --build-images does, "
    "and needs the system package buildah"
)
_ONE_FROM_BEFORE = "one from before the scheduler's restart"
# Some clients ask for other units with each action.
MAX_CACHED = 4096


def service_of(manager: Manager, kind: ActionKind, name: str) -> Service | None:
    """The manager's service for a kind: the named one, or for an empty name the one with the most free slots.

    An image that no service is named by is served by the one for any image.
    """
    if name:
        service = manager.services.get(name)
        if service is None and names_image(name):
            service = manager.services.get(ANY_IMAGE_SERVICE)
        return service if service is not None and service.description.serves(kind, name) else None
    candidates = [service for service in manager.services.values() if service.description.serves(kind, name)]
    return max(candidates, key=_free_slots, default=None)


def _free_slots(service: Service) -> float:
    return float("inf") if service.free_slots is None else service.free_slots


def can_ever_serve(manager: Manager, kind: ActionKind, service: str, demand: Demand) -> bool:
    """Returns whether the manager could serve an action on an idle node."""
    found = service_of(manager, kind, service)
    minimum = demand.minimum()
    return found is not None and found.pool_has(minimum) and manager.node.could_fit(found.booked(minimum))


def by_need(state: SchedulerState, manager: Manager, key: ClassKey, units: dict[str, int]) -> dict[str, int]:
    """Returns the units that a grant of a class needs of a manager's node.

    The node must have the class's demand if nothing else is there.
    """
    if not (manager.by_need and MEMORY in units):
        return units
    return units_by_need(key.kind, units, state.held_memory.of_new(key.job, key.label, key.demand))


def check_servable(state: SchedulerState, request: ActionRequest, trajectory: Trajectory | None) -> bool:
    """Refuses an action that no manager can ever serve, registered or awaited, unless its client wants to wait.

    Returns:
        Whether it can be served only by a manager that was announced, or is to come back, and has not registered yet.

    Raises:
        RefusedError: FAILED_PRECONDITION, naming the service or the resource that is missing.
    """
    if request.wait_if_unservable:
        return False
    pinned = state.managers.get(trajectory.manager_id) if request.needs_sandbox and trajectory is not None else None
    if pinned is not None:
        if not can_ever_serve(pinned, request.kind, request.service, request.demand):
            _refuse(request, [pinned])
        found = service_of(pinned, request.kind, request.service)
        if request.copies_sandbox and found is not None and not found.description.copies_sandboxes:
            raise failed_precondition("where", "FRESH", NOT_COPIED.message)
        return False
    if _some_manager_can_ever_serve(state, request) or (request.needs_sandbox and trajectory is not None):
        return False
    if not _on_their_way(state, request):
        _refuse(request, list(state.managers.values()))
    return True


def awaited_roles(state: SchedulerState, action: Action) -> list[str]:
    """Names of the managers that a queued action waits for, as no registered one can ever serve it."""
    trajectory = action.trajectory
    if action.request.needs_sandbox and trajectory is not None and trajectory.manager_id:
        return []
    if _some_manager_can_ever_serve(state, action.request):
        return []
    return _on_their_way(state, action.request)


def _on_their_way(state: SchedulerState, request: ActionRequest) -> list[str]:
    roles = [role.name for role in state.expected if role.may_serve(request.kind, request.service)]
    return [*roles, _ONE_FROM_BEFORE] if state.awaits_returns else roles


def note_arrival(state: SchedulerState, manager: Manager) -> None:
    """Takes note of the announced roles that a manager is; what waited for them and none can ever serve fails."""
    services = [service.description for service in manager.services.values()]
    still_expected = tuple(role for role in state.expected if not role.is_served_by(services))
    if still_expected == state.expected:
        return
    state.expected = still_expected
    if not state.awaits_returns:
        _settle_waiting(state)


def returns_over(state: SchedulerState) -> None:
    """A manager's lease has passed since the restart: who has not come back is lost, and its work with it."""
    state.awaits_returns = False
    _settle_waiting(state)


def _settle_waiting(state: SchedulerState) -> None:
    jobs = list(state.jobs.values())
    waiting = (action for job in jobs for action in open_actions(job, lambda each: each.awaits_role))
    parts = (partial(_settle, state, action) if action is not None else None for action in waiting)
    state.chores.add(("awaited", ""), parts)


def _settle(state: SchedulerState, action: Action, now: float) -> None:
    # An earlier one of its trajectory may have taken it along.
    if action.state is not ActionState.QUEUED:
        return
    try:
        action.awaits_role = check_servable(state, action.request, action.trajectory)
    except RefusedError as refusal:
        message = f"{refusal.field}: {refusal.value!r} {refusal.rule}"
        finish(state, action, AttemptFailed(FailureKind.ENV, "unservable", message), now)


def _some_manager_can_ever_serve(state: SchedulerState, request: ActionRequest) -> bool:
    class_key = (request.kind, request.service, request.demand)
    servable = state.servable_cache.get(class_key)
    if servable is None:
        if len(state.servable_cache) >= MAX_CACHED:
            state.servable_cache.clear()
        servable = any(can_ever_serve(manager, *class_key) for manager in state.managers.values())
        state.servable_cache[class_key] = servable
    return servable


def _refuse(request: ActionRequest, managers: list[Manager]) -> None:
    offers = ((manager, service_of(manager, request.kind, request.service)) for manager in managers)
    serving = [(manager, service) for manager, service in offers if service is not None]
    if not serving:
        raise _unknown_service(request, managers)
    resources = {CPU, MEMORY, GPU, *(resource for manager in managers for resource in manager.node.capacity)}
    for entry in request.demand.entries:
        most = max(
            service.description.shared.get(entry.resource, manager.node.available(entry.resource))
            for manager, service in serving
        )
        if entry.min_units > most and entry.resource not in resources:
            rule = f"no node that serves it has a resource of this name{did_you_mean(entry.resource, resources)}"
            raise failed_precondition("demand.resources", entry.resource, rule)
        if entry.min_units > most:
            field = f"demand.resources[{entry.resource}]"
            rule = _too_many(entry, most, [manager for manager, _ in serving])
            raise failed_precondition(field, entry.min_units, rule)
    raise failed_precondition("demand", request.demand.minimum(), "no single node has all of these units")


def _too_many(entry: ResourceDemand, most: int, serving: list[Manager]) -> str:
    capacity = max(manager.node.capacity.get(entry.resource, 0) for manager in serving)
    rule = f"is more units than any node that serves it has ({most})"
    if entry.min_units > capacity:
        return rule
    return f"{rule}; of up to {capacity} units the others are shared by commands or reserved by services: ask for fewer"


def _unknown_service(request: ActionRequest, managers: list[Manager]) -> RefusedError:
    kind = request.kind
    names = {name for manager in managers for name, each in manager.services.items() if kind in each.description.kinds}
    if request.service == BUILD_SERVICE:
        return failed_precondition("build", "a Dockerfile", _NO_BUILDER)
    if request.service.startswith(IMAGE_SERVICE_PREFIX):
        image = request.service.removeprefix(IMAGE_SERVICE_PREFIX)
        images = {name.removeprefix(IMAGE_SERVICE_PREFIX) for name in names if names_image(name)}
        meant = did_you_mean(image, images) or _some_of(images)
        rule = f"no registered manager serves {kind.name.lower()} in an image of this name{meant} ({_HOW_TO_ADD})"
        return failed_precondition("image", image, rule)
    rule = f"no registered manager serves {kind.name.lower()} under this name{did_you_mean(request.service, names)}"
    return failed_precondition("service", request.service, rule)


def _some_of(images: set[str]) -> str:
    if not images:
        return ", and there are none"
    more = f" and {len(images) - _MOST_SHOWN} more" if len(images) > _MOST_SHOWN else ""
    return f"; there are {', '.join(sorted(images)[:_MOST_SHOWN])}{more}"
