"""What must hold in the core after every step. A violation prints the story of an action."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from callsheet.scheduler.core.hosted.rollouts import engines_of
from callsheet.scheduler.core.jobs.batches import is_over
from callsheet.scheduler.core.state.buffer import KEPT_ACKNOWLEDGED, Buffer
from callsheet.scheduler.core.state.closed_trajectories import ClosedTogether
from callsheet.scheduler.core.state.entities import Action, FinishedAction, Job, Manager, Trajectory
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.costs import Account
from callsheet.scheduler.core.words.engine_weights import WeightsStanding
from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionState, TrajectoryEnd
from callsheet.scheduler.core.work.adoption import is_of
from callsheet.scheduler.core.work.resizing import elastic_cores


def _story(action: Action) -> str:
    return "".join(f"\n  {time:.6f} {event}" for time, event in action.story)


def check_buffer(state: SchedulerState, job: Job) -> None:
    """Checks the bundles and batches of a job.

    Raises:
        AssertionError: Something of it contradicts itself.
    """
    job_id, buffer = job.request.job_id, job.buffer
    members = [member for bundle in buffer.bundles.values() for member in bundle.members]
    ids = [each.trajectory_id for each in members]
    assert len(ids) == len(set(ids)), f"job {job_id} has a finished trajectory twice: {ids}"
    still_open = job.trajectories.keys() & set(ids)
    assert not still_open, f"job {job_id} has open trajectories in its buffer: {still_open}"
    _check_indices(job_id, buffer)
    numbers = [each.number for each in members]
    assert len(numbers) == len(set(numbers)), f"{numbers} repeat"
    assert max(numbers, default=0) <= buffer.last_number, f"{numbers} repeat"
    for key, bundle in buffer.bundles.items():
        assert bundle.members, f"{key} mixes bundles"
        assert all(each.bundle == key for each in bundle.members), f"{key} mixes bundles"
        assert bundle.whole or not bundle.batch_id, f"{key} was given out before it was whole"
        group = job.groups.get(key[0])
        whole = group is None or is_over(job, group)
        assert bundle.whole == whole, f"{key} is whole: {bundle.whole}, and no other member can finish: {whole}"
        if group is not None and not whole and not job.has_open_members(group):
            watched = state.timers.get(("group", (job_id, key[0]))) is not None
            assert watched, f"{key} waits for members for ever"
    leased = {key: bundle.batch_id for key, bundle in buffer.bundles.items() if bundle.batch_id}
    expected = {key: batch.batch_id for batch in buffer.batches.values() for key in batch.keys}
    assert leased == expected, f"job {job_id} has {leased} given out, its batches say {expected}"
    for batch_id, batch in buffer.batches.items():
        due = state.timers.get(("batch", (job_id, batch_id)))
        assert due is not None, f"the lease of batch {batch_id} never ends"
        assert due <= batch.ends_at, f"the lease of batch {batch_id} never ends"
        assert batch_id not in buffer.acknowledged, f"batch {batch_id} was acknowledged and is leased"
    assert len(buffer.acknowledged) <= KEPT_ACKNOWLEDGED, f"job {job_id} keeps too many ids of batches"


def _check_indices(job_id: str, buffer: Buffer) -> None:
    """Checks what is kept so that nothing has to walk all bundles."""
    whole = [bundle for bundle in buffer.bundles.values() if bundle.whole]
    ready = {bundle.key: bundle for bundle in whole if not bundle.batch_id}
    assert buffer.ready == ready, f"job {job_id} has {list(buffer.ready)} ready, not {list(ready)}"
    incomplete = buffer.bundles.keys() - {bundle.key for bundle in whole}
    assert buffer.incomplete.keys() == incomplete, f"job {job_id} has {list(buffer.incomplete)} incomplete"
    for counted, bundles in ((buffer.held_versions, whole), (buffer.ready_versions, ready.values())):
        versions = Counter(each.policy_version for bundle in bundles for each in bundle.members)
        assert counted == versions, f"job {job_id} counts {counted}, not {versions}"


def check_invariants(state: SchedulerState) -> None:
    """Checks the books of every node, the slots of every service and the place of every action.

    Raises:
        AssertionError: With the story of the action concerned, where there is one.
    """
    for node in state.nodes.values():
        _check_node(state, node)
    for manager in state.managers.values():
        _check_manager(manager)
    _check_admission(state)
    _check_elastic(state)
    open_actions = 0
    for job in state.jobs.values():
        live = [action for action in job.actions.values() if isinstance(action, Action)]
        open_actions += len(live)
        _check_counts(job, live)
        if not job.over:
            _check_costs(job)
        for action in live:
            _check_action(state, action)
        _check_lease(state, job)
        _check_groups(job)
        _check_finished(job)
        _check_closed(job)
        check_buffer(state, job)
    _check_kept(state)
    _check_rollouts(state)
    orphan_bytes = sum(orphan.size for orphan in state.orphans.values())
    assert state.orphan_bytes == orphan_bytes, f"{state.orphan_bytes} bytes of orphans are counted, {orphan_bytes} kept"
    jobs = state.jobs.values()
    assert state.open_actions == open_actions, "open actions are miscounted"
    assert state.open_trajectories == sum(job.open_trajectories for job in jobs), "trajectories are miscounted"
    assert state.open_bytes == sum(job.open_bytes for job in jobs), "bytes of open actions are miscounted"
    assert state.spec_bytes == sum(job.spec_bytes for job in jobs), "bytes of specs are miscounted"


def _check_costs(job: Job) -> None:
    """Checks that a job costs what is under it does: trajectories, and actions and forgotten work besides."""
    now = max([job.account.since, *(each.account.since for each in job.trajectories.values())])
    under = Account()
    for trajectory in job.trajectories.values():
        under.rate = under.rate.copy()
        under.rate.add(trajectory.account.rate)
        under.spent.add(trajectory.account.until(now))
    for closed in job.closed_trajectories.values():
        under.spent.add(closed.cost)
    told, known = job.account.until(now), under.spent
    assert job.account.rate == under.rate, f"{job.account.rate} is held under job {job.request.job_id}"
    for whole, part in ((told.held, known.held), (told.used, known.used)):
        for resource, amount in part.items():
            assert amount <= whole.get(resource, 0.0) * (1 + 1e-9) + 1e-9, f"{whole} is less than {part}"


def _check_counts(job: Job, live: list[Action]) -> None:
    """Checks what a job counts of its actions, and the bytes of all that is open in it."""
    job_id = job.request.job_id
    assert job.open_actions == len(live), f"job {job_id} miscounts its open actions"
    over = {trajectory_id for each in _kept_closed(job) for trajectory_id in each.trajectory_ids}
    specs = [spec for trajectory_id, spec in job.trajectory_specs.items() if trajectory_id not in over]
    assert job.open_trajectories == len(specs), f"job {job_id} counts {job.open_trajectories} trajectories"
    size = sum(len(action.request.spec) for action in live)
    assert job.open_bytes == size, f"job {job_id} counts {job.open_bytes} bytes of open actions, not {size}"
    size = len(job.request.spec) + sum(map(len, specs))
    assert job.spec_bytes == size, f"job {job_id} counts {job.spec_bytes} bytes of specs, not {size}"
    kept, counted = Counter(action.state for action in job.actions.values()), Counter(job.state_counts)
    forgotten = counted - kept
    assert kept <= counted, f"job {job_id} counts {counted} and keeps {kept}"
    assert all(state.terminal for state in forgotten), f"job {job_id} counts {counted} and keeps {kept}"
    assert forgotten.total() == len(job.forgotten), f"job {job_id} counts {forgotten} that are not forgotten"


def _check_lease(state: SchedulerState, job: Job) -> None:
    lease, job_id = job.lease, job.request.job_id
    runs = not lease.sessions and not job.request.detached
    assert (lease.ends_at is not None) == runs, f"the clock of job {job_id}'s lease does not run as it must"
    due = state.timers.get(("job", job_id))
    assert (due is not None) == runs, f"job {job_id} has a lease that runs and no deadline, or the other way round"
    assert due is None or lease.ends_at is None or due <= lease.ends_at, f"job {job_id} is looked after too late"
    assert not (lease.expired and lease.sessions), f"job {job_id} has expired and is held"
    assert not (lease.expired and job.trajectories), f"job {job_id} has expired and has open trajectories"


def _check_finished(job: Job) -> None:
    job_id = job.request.job_id
    finished = {id_: each for id_, each in job.actions.items() if isinstance(each, FinishedAction)}
    assert len(job.finished) == len(finished), f"job {job_id} miscounts its finished actions"
    assert set(job.finished) == finished.keys(), f"job {job_id} has lost sight of a finished action"
    size = sum(each.size for each in finished.values()) + sum(each.size for each in _kept_closed(job))
    assert job.finished_bytes == size, f"job {job_id} miscounts its bytes"
    times = [finished[action_id].finished_at for action_id in job.finished]
    assert times == sorted(times), f"job {job_id} would not forget the oldest first"
    again = [action_id for action_id in job.actions if action_id in job.forgotten] if job.forgotten else []
    assert not again, f"job {job_id} has forgotten actions again: {again}"


def _check_kept(state: SchedulerState) -> None:
    kept = sum(len(job.finished) for job in state.jobs.values())
    assert state.finished_actions == kept, f"{state.finished_actions} finished actions are counted, {kept} are kept"
    closed = sum(job.closed_count for job in state.jobs.values())
    assert state.closed_trajectories == closed, f"{state.closed_trajectories} closed ones are counted, not {closed}"
    kept_bytes = sum(job.finished_bytes for job in state.jobs.values())
    assert state.finished_bytes == kept_bytes, f"{state.finished_bytes} bytes are counted, {kept_bytes} are kept"
    due = state.timers.get(("retention", ""))
    assert due is not None or not (kept or closed), "what is over is kept for ever"


def _check_rollouts(state: SchedulerState) -> None:
    for manager in state.managers.values():
        for name, service in manager.services.items():
            lost = service.weights.told.standing is WeightsStanding.UNPROVED and not service.weights.busy
            due = state.timers.get(("rollout", name))
            nobody = lost and name not in state.rollouts and manager.accepting and due is None
            assert not nobody, f"{manager.manager_id} is quarantined, and nobody heals it"
    for name, rollout in state.rollouts.items():
        assert rollout.job_id in state.jobs, f"the weights of {name} belong to {rollout.job_id}, which is not open"
        due = state.timers.get(("rollout", name))
        engines = engines_of(state, name)
        updating = [each for each in engines if each.weights.updating is not None]
        assert due is not None or not updating, f"an engine of {name} updates and nobody looks after it"
        for engine in engines:
            weights, manager_id = engine.weights, engine.manager.manager_id
            gated = weights.gated_since is not None
            assert gated == weights.gated, f"{manager_id} miscounts for how long it is given nothing"
            waits = weights.busy or weights.has_proved(rollout) or rollout.offer.group_ranks > 0
            waits = waits or not engine.manager.accepting or weights.retry_at == math.inf
            waits = waits or len([each for each in engines if each.weights.busy]) >= rollout.width
            waits = waits or (due is not None and weights.retry_at > -math.inf)
            assert waits, f"{manager_id} neither has the weights of {name} nor is it told to take them"


def _check_groups(job: Job) -> None:
    for group_id, group in job.groups.items():
        members = [job.closed_trajectories.get(member) for member in group.members]
        assert len(members) <= group.size, f"group {group_id} has more members than seats"
        completed = sum(closed is not None and closed.end is TrajectoryEnd.COMPLETED for closed in members)
        assert group.completed == completed, f"group {group_id} counts {group.completed} completed, not {completed}"
        assert not (group.members.keys() & group.lost.keys()), f"group {group_id} has a lost member in a seat"
        assert bool(group.members or group.lost), f"group {group_id} is kept without any trajectory"
        unfinished = sum(each in job.trajectories or each in job.closing for each in (*group.members, *group.lost))
        assert group.unfinished == unfinished, f"group {group_id} counts {group.unfinished} unfinished ones"
        assert (group.closed is None) == bool(unfinished), f"group {group_id} is kept for ever, or too short"
        assert not job.forgotten.has_group(group_id), f"group {group_id} is forgotten and there"


def _kept_closed(job: Job) -> list[ClosedTogether]:
    return [each for each in job.closed if not each.reopened]


def _check_closed(job: Job) -> None:
    """Each closed trajectory is either unfinished itself, or its group is, or it is among what will be forgotten."""
    job_id, specs = job.request.job_id, job.trajectory_specs
    known = job.trajectories.keys() | job.closed_trajectories.keys()
    assert known == specs.keys(), f"job {job_id} has specs of {specs.keys() ^ known} too many or too few"
    assert job.trajectories.keys().isdisjoint(job.closed_trajectories), f"job {job_id} has one open and closed"
    assert job.closing.keys() <= job.closed_trajectories.keys(), f"job {job_id} stops actions of what is not closed"
    stopping = {
        action.trajectory.request.trajectory_id
        for action in job.actions.values()
        if isinstance(action, Action) and action.trajectory is not None
    }
    assert stopping - job.trajectories.keys() == job.closing.keys(), f"job {job_id} has {job.closing.keys()} closing"
    kept = [trajectory_id for each in _kept_closed(job) for trajectory_id in each.trajectory_ids]
    assert len(kept) == len(set(kept)) == job.closed_count, f"job {job_id} keeps a closed trajectory twice"
    waiting = {
        trajectory_id
        for trajectory_id, closed in job.closed_trajectories.items()
        if trajectory_id in job.closing
        or (
            (group := job.groups.get(closed.group_id)) is not None
            and group.unfinished
            and trajectory_id in group.together
        )
    }
    lost_sight = job.closed_trajectories.keys() - waiting - set(kept)
    assert not lost_sight, f"job {job_id} keeps {lost_sight} for ever"
    assert waiting.isdisjoint(kept), f"job {job_id} would forget {waiting & set(kept)} too early"
    times = [each.ended_at for each in job.closed]
    assert times == sorted(times), f"job {job_id} would not forget the oldest trajectory first"
    # Most worlds forget nothing; each look makes two digests.
    ids = specs if job.forgotten._shards else ()
    again = [each for each in ids if job.forgotten.recall_trajectory(each) is not None]
    assert not again, f"job {job_id} has forgotten trajectories again: {again}"


def _check_node(state: SchedulerState, node: Node) -> None:
    booked: dict[str, int] = {}
    cores: list[int] = []
    for manager_id in node.managers:
        manager = state.managers[manager_id]
        holders = [(attempt.units, attempt.cores) for attempt in manager.attempts.values()]
        holders += [(_booked(trajectory), trajectory.held_cores) for trajectory in manager.sandboxes.values()]
        holders += list(manager.strangers.values())
        for units, held_cores in holders:
            cores.extend(held_cores)
            for resource, count in units.items():
                booked[resource] = booked.get(resource, 0) + count
    assert {r: u for r, u in booked.items() if u} == {r: u for r, u in node.granted.items() if u}, (
        f"node {node.node_id} books {node.granted} but {booked} is held"
    )
    assert len(cores) == len(set(cores)), f"node {node.node_id} granted a core twice: {sorted(cores)}"
    _check_pools(state, node, cores)
    assert booked.keys().isdisjoint(node.quotas), f"node {node.node_id} has quotas booked: {booked}"
    for resource, bucket in node.quotas.items():
        assert node.free[resource] == bucket.units, f"node {node.node_id} miscounts what there is of {resource}"
        in_bounds = -1e-6 <= bucket.level <= bucket.limits.burst
        assert in_bounds, f"node {node.node_id} has {bucket.level} of {resource}, out of {bucket.limits.burst}"
    for resource, capacity in node.capacity.items():
        if resource in node.quotas:
            continue
        free = capacity - node.reserved.get(resource, 0) - booked.get(resource, 0)
        assert node.free[resource] == free, f"node {node.node_id} miscounts free {resource}"
    if node.free.get(CPU, 0) > 0:
        assert free_core_count(node) >= node.free[CPU], f"node {node.node_id} has fewer free cores than units"


def _booked(trajectory: Trajectory) -> dict[str, int]:
    """What a sandbox's node should book: its demand, but of memory what it was told to hold and a fifth of the rest."""
    held, demand = trajectory.held_mib, trajectory.held.get(MEMORY, 0)
    if not 0 < held < demand:
        return trajectory.held
    return {**trajectory.held, MEMORY: held + math.ceil((demand - held) / 5)}


def free_core_count(node: Node) -> int:
    """Returns the number of cores that could be handed out now."""
    return sum(map(len, node._free_cores))


def _check_pools(state: SchedulerState, node: Node, booked_cores: list[int]) -> None:
    pools = {manager_id: state.managers[manager_id].pool for manager_id in node.managers}
    for manager_id, cores in node.pool_cores.items():
        expected = pools[manager_id].get(CPU, 0)
        assert len(cores) == expected, f"the pool of {manager_id} has the cores {cores} and should have {expected}"
    pooled = [core for cores in node.pool_cores.values() for core in cores]
    assert len(pooled) == len(set(pooled)), f"node {node.node_id} has a core in two pools: {node.pool_cores}"
    free = sum(len(numa) for numa in node.description.numa_cores) - len(set(booked_cores) | node.reserved_cores)
    assert free_core_count(node) == free, f"node {node.node_id} miscounts its free cores"


def _check_manager(manager: Manager) -> None:
    for service in manager.services.values():
        running = sum(attempt.service == service.description.name for attempt in manager.attempts.values())
        assert service.busy == running, f"{manager.manager_id} miscounts the slots of {service.description.name}"
        ours = (attempt for attempt in manager.attempts.values() if attempt.service == service.description.name)
        held = sum(attempt.kv_tokens for attempt in ours)
        assert service.kv_booked == held, f"{manager.manager_id} books {service.kv_booked} tokens of KV, not {held}"
    for attempt in manager.attempts.values():
        service = manager.services[attempt.service]
        own = attempt.units.keys() & service.description.shared.keys()
        assert not own, f"{attempt.token} has {own} booked, which {attempt.service} shares" + _story(attempt.action)
        pooled = service.pool_has(attempt.granted)
        assert pooled, f"{attempt.token} has {attempt.granted}, more than {attempt.service} shares" + _story(
            attempt.action
        )


def _check_admission(state: SchedulerState) -> None:
    for job_id, job in state.jobs.items():
        waiting = state.waiting_trajectories.get(job_id, {})
        expected = {
            trajectory_id
            for trajectory_id, trajectory in job.trajectories.items()
            if trajectory.admitted_at is None and trajectory.open_actions
        }
        assert waiting.keys() == expected, f"job {job_id} has {list(waiting)} wait for admission, not {expected}"
        live = sum(trajectory.admitted_at is not None for trajectory in job.trajectories.values())
        assert job.live_trajectories == live, f"job {job_id} counts {job.live_trajectories} live ones, not {live}"
        _check_beginnings(job, waiting)
    assert all(state.waiting_trajectories.values()), "a job without waiting trajectories has an entry"
    assert state.waiting_trajectories.keys() <= state.jobs.keys(), "a closed job has waiting trajectories"


def _check_beginnings(job: Job, waiting: Mapping[str, Trajectory]) -> None:
    admitted = [trajectory for trajectory in job.trajectories.values() if trajectory.admitted_at is not None]
    versions = Counter(trajectory.policy_version for trajectory in admitted)
    assert job.live_versions == versions, f"{job.request.job_id} counts {job.live_versions}, not {versions}"
    for trajectory in admitted:
        assert trajectory.group is None or trajectory.group.begun, f"{trajectory.key} began, and its group did not"
    in_groups = defaultdict[str, set[str]](set)
    for name, each in waiting.items():
        if each.request.group is not None:
            in_groups[each.request.group.group_id].add(name)
    for group_id, group in job.groups.items():
        ours = in_groups[group_id]
        assert group.waiting.keys() == ours, f"group {group_id} has {list(group.waiting)} waiting, not {ours}"
        listed = group_id in job.begun_and_waiting
        assert listed == (group.begun and bool(ours)), f"group {group_id} has begun and waits: {listed}"
    assert job.begun_and_waiting.keys() <= job.groups.keys(), f"{job.request.job_id} has a forgotten group wait"


def _check_elastic(state: SchedulerState) -> None:
    booked = {
        attempt.token
        for manager in state.managers.values()
        for attempt in manager.attempts.values()
        if CPU in attempt.units and elastic_cores(attempt.action.request.demand) is not None
    }
    known = {token for token, attempt in state.elastic_attempts.items() if attempt.manager is not None}
    assert booked <= known, f"{booked - known} can be narrowed and is not known for it"
    assert state.elastic_attempts.keys() <= state.attempts.keys(), "an elastic attempt is over"
    assert state.narrowed_attempts.keys() <= state.elastic_attempts.keys(), "a narrowed attempt is not elastic"
    for attempt in state.narrowed_attempts.values():
        fewer = attempt.units.get(CPU, 0) < attempt.narrowed_from
        assert fewer, f"{attempt.token} counts as narrowed and has all its cores" + _story(attempt.action)


def _check_action(state: SchedulerState, action: Action) -> None:
    assert not action.state.terminal, f"{action.key} has its outcome but is kept as live" + _story(action)
    has_attempt = action.state is not ActionState.QUEUED
    assert (action.attempt is not None) == has_attempt, f"{action.key} is {action.state} without reason" + _story(
        action
    )
    if action.attempt is not None:
        assert state.attempts.get(action.attempt.token) is action.attempt, f"{action.key} lost its attempt" + _story(
            action
        )
        assert not action.ready_ticket, f"{action.key} is running and ready at once" + _story(action)
        own = is_of(action.job, action.attempt.token)
        assert own, f"{action.key} has an attempt of a former job of its id" + _story(action)
        return
    if action.trajectory is not None and action.trajectory.admitted_at is None:
        assert not action.ready_ticket, f"{action.key} is ready before its trajectory is admitted" + _story(action)
        return
    trajectory = action.trajectory if action.request.in_sandbox else None
    waits_in_line = (
        trajectory is not None
        and action in trajectory.line
        and (trajectory.line[0] is not action or trajectory.occupied is not None)
    )
    waits = bool(action.ready_ticket) or waits_in_line or state.timers.get(("backoff", action.key)) is not None
    assert waits, f"{action.key} is queued but waits for nothing" + _story(action)
    assert state.timers.get(("action", action.key)) is not None, f"{action.key} has no deadline" + _story(action)
