"""Managers and their sandboxes: joining, silence, loss, leaving."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from callsheet.scheduler.core.fleet.loss import MANAGER_LOST, end_attempt, lose_work, lost_key
from callsheet.scheduler.core.fleet.quota_refills import buckets_of
from callsheet.scheduler.core.hosted.default_demand import learn_demands
from callsheet.scheduler.core.hosted.rollouts import forget_engines, heal, reconnected, registered, weights_told
from callsheet.scheduler.core.hosted.service_load import forget_told, tell_demand
from callsheet.scheduler.core.state.announced_managers import Awaited
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service, pool_of
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import AcceptManager, DrainManager, RefuseManager, ReleaseSandbox
from callsheet.scheduler.core.words.model import CPU, ActionKind, FailureKind
from callsheet.scheduler.core.words.peers import ManagerSession
from callsheet.scheduler.core.words.records import ManagerLeaves
from callsheet.scheduler.core.words.refusals import (
    MustWaitError,
    RefusalCode,
    RefusedError,
    failed_precondition,
    invalid,
    not_found,
)
from callsheet.scheduler.core.words.registration import NodeDescription, ServiceDescription, ServiceState
from callsheet.scheduler.core.work.adoption import adopt_running, release_stranger
from callsheet.scheduler.core.work.lifecycle import drop_sandbox, note_held
from callsheet.scheduler.core.work.servability import note_arrival

NEVER_STARTED = events.AttemptFailed(
    FailureKind.INFRA, "dispatch_lost", "the manager knows nothing of the attempt, so it never started"
)


def on_joined(state: SchedulerState, event: events.ManagerJoined, now: float) -> None:
    """Registers a manager, for the first time or again, and takes over what it still runs."""
    known = state.managers.get(event.manager_id)
    try:
        if known is not None and known.incarnation != event.incarnation:
            _check_gone(state, known, now)
            lose_manager(state, known, now)
        awaited = state.awaited.get(event.manager_id, Awaited())
        if former := awaited.take_attempts(but_of=event.incarnation):
            # They may have begun: only the process that they were sent to could know, and it is gone.
            lose_work(state, event.manager_id, "", former, (), now=now)
        if lost_key(event.manager_id) in state.chores:
            # What its former process had ends first.
            raise MustWaitError
        manager = _reconnect(state, known, event, now) if known is not None else _register(state, event, now)
    except RefusedError as refusal:
        state.emit(RefuseManager(event.session, refusal))
        return
    manager.last_seen = now
    state.awaited.pop(manager.manager_id, None)
    if awaited.drain is not None:
        _go_on_leaving(state, manager, awaited.drain)
    _recover_sandboxes(state, manager, event, awaited, now)
    # The answer comes first in the stream, before commands about what the manager still runs.
    state.emit(AcceptManager(event.session, manager.node.pool_cores.get(manager.manager_id, ())))
    manager.listed_sandboxes = event.sandboxes
    listed = {running.token for running in event.running}
    _release_strangers(manager)
    for running in event.running:
        adopt_running(state, manager, running, now)
    given = {*manager.attempts, *manager.unlisted, *(each.token for each in awaited.take_attempts())}
    manager.unlisted = {token for token in given - listed if token in state.attempts}
    state.timers.set(("manager", manager.manager_id), now + state.settings.manager_lease)
    state.fleet_changed(manager.node)
    note_arrival(state, manager)


def _go_on_leaving(state: SchedulerState, manager: Manager, drain: ManagerLeaves) -> None:
    """After a restart of the scheduler: the process that was asked to leave does; another one of its id may stay."""
    if drain.incarnation == manager.incarnation and drain.leaves_by is not None:
        _set_leave(state, manager, drain.leaves_by)
    else:
        state.persist(replace(drain, leaves_by=None))


def _check_gone(state: SchedulerState, manager: Manager, now: float) -> None:
    """Two processes under one id would destroy each other's sandboxes for ever: the second one must wait.

    A process that was killed has broken its stream. One whose machine is gone has a stream still, but says nothing.

    Raises:
        RefusedError: ALREADY_EXISTS: the former process answers.
    """
    if manager.session is not None and now - manager.last_seen < state.settings.manager_lease / 2.0:
        rule = "is the id of another process that answers: stop that one, or give this one a --manager-id of its own"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "registration.manager_id", manager.manager_id, rule)


def _reconnect(state: SchedulerState, manager: Manager, event: events.ManagerJoined, now: float) -> Manager:
    """Takes a manager's new stream, and what it takes to begin on its services now; else it is what it was.

    One that drains by itself says so again. One that was told to may have lost that command with its old stream, and is
    told again after a heartbeat.
    """
    _check_unchanged(manager, event)
    if manager.session is not None and manager.session is not event.session:
        replaced = failed_precondition("manager_id", manager.manager_id, "registered again on another stream")
        state.emit(RefuseManager(manager.session, replaced))
    manager.session = event.session
    manager.reconciled = False
    manager.draining = False
    for description in event.services:
        service = manager.services[description.name]
        service.description = description
        _begin_on(state, service, description)
        weights_told(state, manager, service, description.weights, now)
    learn_demands(state, event.services)
    for ref in event.sandboxes:
        trajectory = manager.sandboxes.get((ref.job_id, ref.trajectory_id))
        if trajectory is not None and trajectory.sandbox == ref:
            note_held(state, trajectory, manager, ref.held_mib, now)
    manager.node.changed.add(manager.node)
    return manager


def _check_unchanged(manager: Manager, event: events.ManagerJoined) -> None:
    """Checks that nodes and services on which attempts and sandboxes are booked did not change under them.

    Raises:
        RefusedError: FAILED_PRECONDITION naming what did.
    """
    rule = "must be what this incarnation registered first: {}"
    if event.node != manager.node.description:
        registered = rule.format(_short(manager.node.description))
        raise failed_precondition("registration.node", _short(event.node), registered)
    before = sorted(_lasting(service.description) for service in manager.services.values())
    after = sorted(_lasting(description) for description in event.services)
    if after != before:
        registered = rule.format(before)
        raise failed_precondition("registration.services", after, registered)


def _lasting(
    description: ServiceDescription,
) -> tuple[str, list[ActionKind], int, list[tuple[str, int]], list[tuple[str, int]]]:
    """Returns the part of a service that stays as long as its manager lives."""
    reserved, shared = sorted(description.reserved.items()), sorted(description.shared.items())
    return description.name, sorted(description.kinds), description.slots, reserved, shared


def _node_for(state: SchedulerState, event: events.ManagerJoined) -> Node:
    description = event.node
    node = state.nodes.get(description.node_id)
    if node is not None and node.managers and node.description != description:
        rule = f"must be declared as its other managers {sorted(node.managers)} did: {_short(node.description)}"
        raise failed_precondition("registration.node", _short(description), rule)
    return node if node is not None else Node(description)


def _check_room_for_services(node: Node, event: events.ManagerJoined) -> None:
    """Checks that a node with pools has the units that services take away: else a pool is less than it reports."""
    reserved = [service.reserved.items() for service in event.services]
    pool = pool_of(event.services)
    for resource in pool | node.pooled:
        own = sum(units for items in reserved for name, units in items if name == resource) + pool.get(resource, 0)
        taken, capacity = node.reserved.get(resource, 0), node.capacity.get(resource, 0)
        if own + taken > capacity:
            field = f"registration.services.{'shared' if resource in pool else 'reserved'}[{resource}]"
            rule = f"must fit beside what other services of the node reserve and share: {taken} of its {capacity}"
            raise failed_precondition(field, own, rule)
    own = sum(service.reserved.get(CPU, 0) for service in event.services)
    in_the_way = node.pools_in_the_way(own) if own else []
    if in_the_way:
        rule = f"are the last cores of the node, and some of them are in the pools of {in_the_way}"
        raise failed_precondition("registration.services.reserved[cpu]", own, rule)


def _short(description: NodeDescription) -> str:
    cores = sum(len(numa) for numa in description.numa_cores)
    return f"{description.node_id}: {cores} cores, {dict(sorted(description.capacity.items()))}"


def _register(state: SchedulerState, event: events.ManagerJoined, now: float) -> Manager:
    node = _node_for(state, event)
    _check_room_for_services(node, event)
    services = {description.name: Service(description) for description in event.services}
    for service in services.values():
        _begin_on(state, service, service.description)
    if not node.managers:
        node.describe(event.node)
    manager = Manager(event.manager_id, event.incarnation, node, services, event.session, now, event.capabilities)
    state.nodes[node.node_id] = node
    if event.node.quotas and node.node_id not in state.metered_nodes:
        node.meter(buckets_of(state, node.node_id, event.node.quotas, now))
        state.metered_nodes[node.node_id] = node
    node.managers.add(manager.manager_id)
    state.managers[manager.manager_id] = manager
    state.lost_managers.pop(manager.manager_id, None)
    update_reserve(state, node)
    learn_demands(state, event.services)
    for service in services.values():
        registered(state, manager, service, service.description.weights, now)
    return manager


def update_reserve(state: SchedulerState, node: Node) -> None:
    """Recomputes what the services of a node take away from it."""
    managers = [state.managers[manager_id] for manager_id in sorted(node.managers)]
    node.reserve(
        (service.description.reserved for manager in managers for service in manager.services.values()),
        {manager.manager_id: manager.pool for manager in managers if manager.pool},
    )


def _recover_sandboxes(
    state: SchedulerState, manager: Manager, event: events.ManagerJoined, awaited: Awaited, now: float
) -> None:
    """After a restart of the scheduler: books the sandboxes the journal placed here, or learns that they are gone."""
    present = {(ref.job_id, ref.trajectory_id): ref for ref in event.sandboxes}
    for trajectory in awaited.with_sandboxes(manager.manager_id):
        ref = present.get(trajectory.key)
        if ref == trajectory.sandbox:
            manager.sandboxes[trajectory.key] = trajectory
            booked = manager.node.take_existing(trajectory.held, trajectory.held_cores)
            trajectory.held, trajectory.held_cores = booked
            note_held(state, trajectory, manager, ref.held_mib, now)
        else:
            drop_sandbox(state, trajectory, now, lost=True)


def on_disconnected(state: SchedulerState, event: events.ManagerDisconnected, now: float) -> None:
    """A stream broke: nothing new is sent; the lease goes on."""
    manager = state.managers.get(event.manager_id)
    if manager is not None and manager.session is event.session:
        manager.session = None
        manager.reconciled = False
        state.fleet_changed(manager.node)
        if manager.draining and not manager.attempts:
            lose_manager(state, manager, now)
            # It left in good order.
            del state.lost_managers[manager.manager_id]


def on_heartbeat(state: SchedulerState, event: events.ManagerHeartbeat, now: float) -> None:
    """Renews a lease. The first one after a registration settles what the manager did not list."""
    manager = state.managers.get(event.manager_id)
    if manager is None or _is_stale(manager, event.session):
        return
    manager.last_seen = now
    for told in event.services:
        _update_service(state, manager, told, now)
    if not manager.reconciled:
        _reconcile(state, manager, now)
    if manager.listed_sandboxes:
        _release_strays(state, manager)
    tell_demand(state, manager, now)
    leave_when_over(state, manager, now)


def leave_when_over(state: SchedulerState, manager: Manager, now: float) -> None:
    """Has a manager that is to leave do so if nothing of it is in use any more, or its time is up."""
    if manager.leaves_by is None or manager.draining or manager.session is None:
        return
    if now >= manager.leaves_by or not (manager.attempts or manager.sandboxes):
        manager.draining = True
        state.fleet_changed(manager.node)
        state.emit(DrainManager(manager.session))


def _update_service(state: SchedulerState, manager: Manager, told: ServiceState, now: float) -> None:
    service = manager.services.get(told.name)
    if service is not None:
        _begin_on(state, service, told)
        weights_told(state, manager, service, told.weights, now)
        if told.demand and told.demand != service.description.demand:
            service.description = replace(service.description, demand=told.demand)
            learn_demands(state, [service.description])
        manager.node.changed.add(manager.node)
    elif manager.session is not None:
        rule = f"must be one of the services it registered: {sorted(manager.services)}"
        refusal = invalid("heartbeat.services.name", told.name, rule)
        state.emit(RefuseManager(manager.session, refusal))


def _begin_on(state: SchedulerState, service: Service, told: ServiceDescription | ServiceState) -> None:
    """Takes over what it takes to begin on a service."""
    service.setup_s, service.instances = told.setup_s, told.instances
    service.instance_slots = told.instance_slots
    state.kept_set_ups.change(service.kept_set_ups, told.kept_set_ups)
    service.kept_set_ups = told.kept_set_ups
    service.no_room = isinstance(told, ServiceState) and told.no_room
    if isinstance(told, ServiceState):
        service.problem, service.waiting_for_memory = told.problem, told.waiting_for_memory
        service.others_sequences, service.others_kv_tokens = told.others_sequences, told.others_kv_tokens


def _is_stale(manager: Manager, session: ManagerSession | None) -> bool:
    """Returns whether something was said on a stream that another one has replaced: it knows nothing of the new one."""
    return session is not None and session is not manager.session


def _reconcile(state: SchedulerState, manager: Manager, now: float) -> None:
    manager.reconciled = True
    for token in sorted(manager.unlisted):
        attempt = state.attempts.get(token)
        if attempt is not None:
            # A call of an unknown process may have begun there, so it is not made again.
            lost = attempt.of_unknown_process and attempt.action.request.called_once
            end_attempt(state, attempt, MANAGER_LOST if lost else NEVER_STARTED, now, started=lost)
    manager.unlisted.clear()
    state.fleet_changed(manager.node)
    forget_told(manager)
    reconnected(state, manager, now)


def _release_strangers(manager: Manager) -> None:
    for token in list(manager.strangers):
        release_stranger(manager, token)


def _release_strays(state: SchedulerState, manager: Manager) -> None:
    """Destroys sandboxes that the manager had when it registered and that belong to no trajectory.

    Waits while an attempt on that manager may still turn out to have made one of them.
    """
    if any(orphan.manager_id == manager.manager_id for orphan in state.orphans.values()):
        return
    undecided = []
    for ref in manager.listed_sandboxes:
        owner = state.find_trajectory(ref.job_id, ref.trajectory_id)
        maker = owner.occupied if owner is not None else None
        if maker is not None and maker.manager_id == manager.manager_id and not maker.action.request.needs_sandbox:
            undecided.append(ref)
        elif owner is None or owner.sandbox_id != ref.sandbox_id:
            state.emit(ReleaseSandbox(manager.session, ref))
    manager.listed_sandboxes = tuple(undecided)


def on_draining(state: SchedulerState, event: events.ManagerDraining, now: float) -> None:
    """A manager takes no new attempts."""
    manager = state.managers.get(event.manager_id)
    if manager is not None and not _is_stale(manager, event.session):
        manager.draining = True
        state.fleet_changed(manager.node)


def on_sandbox_lost(state: SchedulerState, event: events.SandboxLost, now: float) -> None:
    """A sandbox died by itself. Only who has it can know."""
    trajectory = state.find_trajectory(event.sandbox.job_id, event.sandbox.trajectory_id)
    told = (event.manager_id, event.sandbox.sandbox_id)
    if trajectory is not None and (trajectory.manager_id, trajectory.sandbox_id) == told:
        drop_sandbox(state, trajectory, now, lost=True)


def lose_manager(state: SchedulerState, manager: Manager, now: float) -> None:
    """Gives up a manager with all it ran and held, in parts; until that is done it counts as one that is away."""
    if lost_key(manager.manager_id) in state.chores:
        return
    if manager.session is not None:
        lost = failed_precondition("manager_id", manager.manager_id, "its lease ran out")
        state.emit(RefuseManager(manager.session, lost))
    manager.session = None
    state.fleet_changed(manager.node)
    state.timers.drop(("manager", manager.manager_id))
    state.timers.drop(("drain", manager.manager_id))
    tokens = {**manager.attempts, **dict.fromkeys(manager.unlisted)}
    attempts = [state.attempts[token] for token in tokens if token in state.attempts]
    lose_work(state, manager.manager_id, manager.node.node_id, attempts, list(manager.sandboxes.values()), now=now)
    state.chores.add(lost_key(manager.manager_id), [partial(_forget, state, manager)])


def _forget(state: SchedulerState, manager: Manager, now: float) -> None:
    for service in manager.services.values():
        state.kept_set_ups.change(service.kept_set_ups, {})
    del state.managers[manager.manager_id]
    if manager.leaves_by is not None:
        state.persist(ManagerLeaves(manager.manager_id, manager.incarnation, None))
    state.fleet_changed(manager.node)
    _release_strangers(manager)
    node = manager.node
    node.managers.discard(manager.manager_id)
    if node.managers:
        update_reserve(state, node)
    else:
        del state.nodes[node.node_id]
        state.metered_nodes.pop(node.node_id, None)
    forget_engines(state, manager, now)


def on_drain(state: SchedulerState, event: events.DrainRequested, now: float) -> None:
    """Takes a manager out of service once its attempts are over and its last sandbox has ended, or its time is up."""
    manager = _registered(state, event.manager_id)
    if not event.dry_run:
        _set_leave(state, manager, now + event.deadline)
        state.persist(ManagerLeaves(manager.manager_id, manager.incarnation, manager.leaves_by))
        leave_when_over(state, manager, now)
    state.accept(event.reply_to)


def _set_leave(state: SchedulerState, manager: Manager, leaves_by: float) -> None:
    manager.leaves_by = leaves_by
    state.fleet_changed(manager.node)
    state.timers.drop(("drain", manager.manager_id))
    if leaves_by < inf:
        state.timers.set(("drain", manager.manager_id), leaves_by)


def on_heal(state: SchedulerState, event: events.HealRequested, now: float) -> None:
    """Has the quarantined engines of a manager go back to the weights that they were started with."""
    heal(state, _registered(state, event.manager_id), now)
    state.accept(event.reply_to)


def _registered(state: SchedulerState, manager_id: str) -> Manager:
    manager = state.managers.get(manager_id)
    if manager is None:
        raise not_found("manager_id", manager_id, "names no registered manager")
    return manager
