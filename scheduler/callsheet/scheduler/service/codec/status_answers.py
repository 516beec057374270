"""Jobs, trajectories, groups, buffers and rollouts as clients and operators see them: the core's state as messages."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import anyio.to_thread
from callsheet.scheduler.core.hosted.rollouts import RANKS_DIFFER, PolicyEngine, engines_of
from callsheet.scheduler.core.jobs.idle_jobs import idle_at, idle_timeout_of
from callsheet.scheduler.core.jobs.leases import grace_of, open_job
from callsheet.scheduler.core.jobs.pacing import PacingGate, max_buffered_of
from callsheet.scheduler.core.state.buffer import Bundle, LeasedBatch
from callsheet.scheduler.core.state.entities import NO_BUDGET, Group, Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.engine_weights import EngineWeights, WeightsRollout
from callsheet.scheduler.core.words.model import Opened, Token, TrajectoryEnd
from callsheet.scheduler.core.work.costs import group_cost
from callsheet.scheduler.core.work.over_or_unknown import unknown_group, unknown_trajectory
from callsheet.scheduler.history.messages import cost_message
from callsheet.scheduler.service.codec.decode import DEFAULT_IDLE_TIMEOUT
from callsheet.scheduler.service.codec.rules import fill_duration, to_duration
from callsheet.scheduler.service.turns import in_turns, made_of
from callsheet.v1 import buffer_pb2, client_service_pb2, job_pb2, weights_pb2
from callsheet.v1.rules.fields import within

# What opens found, and how trajectories end, as the contract has them.

_TO_WIRE: Final = {end: job_pb2.TrajectoryEnd.Value(f"TRAJECTORY_END_{end.name}") for end in TrajectoryEnd}
_FROM_WIRE: Final = {number: end for end, number in _TO_WIRE.items()}


def opening_of(opened: Opened | None) -> job_pb2.Opening.ValueType:
    """What an open found; unspecified if nothing was told."""
    return job_pb2.Opening.ValueType(opened.opening if opened is not None else 0)


def end_of(opened: Opened | None) -> job_pb2.TrajectoryEnd.ValueType:
    """How the trajectory that was opened had ended; unspecified if it has not."""
    end = opened.end if opened is not None else None
    return to_wire(end) if end is not None else job_pb2.TRAJECTORY_END_UNSPECIFIED


def life_of(begun_after: Token) -> str:
    """A job's life in the contract: of one width, so that lives sort as tokens do."""
    return f"{begun_after.epoch:010x}-{begun_after.sequence:016x}"


def to_wire(end: TrajectoryEnd) -> job_pb2.TrajectoryEnd.ValueType:
    """An end of a trajectory in the contract."""
    return _TO_WIRE[end]


def from_wire(end: int) -> TrajectoryEnd:
    """An end of a trajectory from the contract, where no end means that it is completed."""
    return _FROM_WIRE.get(job_pb2.TrajectoryEnd.ValueType(end), TrajectoryEnd.COMPLETED)


# A job's buffer and its batches as messages.

DEFAULT_PAGE = 1_000
MAX_PAGE = 10_000


async def batch_message(job: Job, batch: LeasedBatch, now: float) -> buffer_pb2.TrajectoryBatch:
    """A batch, for its taker."""
    lease = to_duration(max(batch.ends_at - now, 0.0))
    message = buffer_pb2.TrajectoryBatch(batch_id=batch.batch_id, policy_version=batch.policy_version, lease=lease)
    bundles = [job.buffer.bundles[key] for key in batch.keys]
    add = message.trajectories.extend
    await in_turns(made_of(bundles, lambda bundle: add(_trajectories(bundle, batch.policy_version, now))))
    return message


def _trajectories(bundle: Bundle, version: int, now: float) -> Iterator[buffer_pb2.BufferedTrajectory]:
    for each in bundle.members:
        yield buffer_pb2.BufferedTrajectory(
            trajectory_id=each.trajectory_id,
            group_id=each.group_id,
            result=buffer_pb2.TrajectoryResult.FromString(each.result.encoded),
            policy_version=each.policy_version,
            staleness=version - each.policy_version,
            batch_id=bundle.batch_id,
            whole=bundle.whole,
            took=to_duration(each.took_s),
            waited=to_duration(max(now - each.finished_at, 0.0)),
        )


async def list_buffer(
    state: SchedulerState, request: client_service_pb2.ListBufferRequest, now: float
) -> client_service_pb2.ListBufferResponse:
    """What is in a job's buffer, the oldest first and without payloads.

    Raises:
        RefusedError: NOT_FOUND if the job is not open; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    size = int(within("page_size", request.page_size, 0, MAX_PAGE)) or DEFAULT_PAGE
    response = client_service_pb2.ListBufferResponse()

    def parts() -> Generator[None, None, None]:
        for bundle in sorted(job.buffer.bundles.values(), key=lambda each: each.number):
            for message in _trajectories(bundle, job.policy_version, now):
                if len(response.trajectories) == size:
                    response.more = True
                    return
                message.result.ClearField("payload")
                response.trajectories.append(message)
                yield

    await in_turns(parts())
    return response


def buffer_status(state: SchedulerState, job: Job, now: float) -> buffer_pb2.BufferStatus:
    """A job's buffer in figures."""
    buffer, gate = job.buffer, PacingGate(state, job)
    return buffer_pb2.BufferStatus(
        ready=buffer.ready_count,
        leased=buffer.held - buffer.ready_count,
        incomplete=sum(len(each.members) for each in buffer.incomplete.values()),
        bound=max_buffered_of(state, job),
        held_up="" if gate.has_room else gate.reason,
        waiting_takers=len(buffer.takers),
        counts={fate: buffer.lengths.total(fate) for fate in buffer.lengths.counts},
        staleness=buffer.staleness,
        batches=(
            buffer_pb2.LeasedBatchStatus(
                batch_id=batch.batch_id,
                trajectories=len(buffer.members_of(batch)),
                lease=to_duration(max(batch.ends_at - now, 0.0)),
            )
            for batch in buffer.batches.values()
        ),
        lengths=(
            buffer_pb2.LengthShare(
                trajectories=share.trajectories, trained=share.trained, up_to=to_duration(share.up_to_s)
            )
            for share in buffer.lengths.shares()
        ),
    )


# Rollouts as clients and operators see them: the core's state as messages.

HEALED = "it was healed, and serves the weights that it was started with until another publish"
ANOTHER_PUBLISH = "; the trainer broadcasts to a group once: publish the weights again"


def rollouts_of(state: SchedulerState, job_id: str, now: float) -> Iterator[weights_pb2.RolloutStatus]:
    """The rollouts of a job, by service."""
    for service in sorted(state.rollouts):
        rollout = state.rollouts[service]
        if rollout.job_id == job_id:
            yield rollout_status(state, rollout, now)


def rollout_status(state: SchedulerState, rollout: WeightsRollout, now: float) -> weights_pb2.RolloutStatus:
    """A rollout with all its engines."""
    plan = weights_pb2.RolloutPlan.FromString(rollout.offer.plan)
    engines = engines_of(state, rollout.service)
    return weights_pb2.RolloutStatus(
        service=rollout.service,
        version=rollout.version,
        mode=plan.mode,
        at_once=rollout.offer.at_once,
        engines=(_engine_status(rollout, engine, len(engines), now) for engine in engines),
    )


def _engine_status(rollout: WeightsRollout, engine: PolicyEngine, engines: int, now: float) -> weights_pb2.EngineStatus:
    weights, last = engine.weights, engine.weights.told.last_update
    state = _state_of(rollout, weights)
    is_tried_again = state == weights_pb2.ENGINE_STATE_QUARANTINED and weights.retry_at < math.inf
    return weights_pb2.EngineStatus(
        manager_id=engine.manager.manager_id,
        state=state,
        version=weights.told.version,
        serving=not weights.gated and engine.manager.accepting,
        reason=_reason(rollout, engine, engines, state),
        failures=weights.failures,
        retry_in=to_duration(max(weights.retry_at - now, 0.0)) if is_tried_again else None,
        exposed_s=weights.exposed_until(now),
        last_exposed_s=last.exposed_s if last is not None else 0.0,
        warning=last.warning if last is not None and state == weights_pb2.ENGINE_STATE_PROVED else "",
    )


def _state_of(rollout: WeightsRollout, weights: EngineWeights) -> weights_pb2.EngineState.ValueType:
    if weights.busy:
        return weights_pb2.ENGINE_STATE_UPDATING
    if weights.has_proved(rollout):
        return weights_pb2.ENGINE_STATE_PROVED
    if weights.failures and weights.rollout == rollout.token:
        return weights_pb2.ENGINE_STATE_QUARANTINED
    return weights_pb2.ENGINE_STATE_WAITING


def _reason(
    rollout: WeightsRollout, engine: PolicyEngine, engines: int, state: weights_pb2.EngineState.ValueType
) -> str:
    weights = engine.weights
    if state == weights_pb2.ENGINE_STATE_QUARANTINED:
        return weights.reason + (ANOTHER_PUBLISH if weights.retry_at == math.inf else "")
    if state != weights_pb2.ENGINE_STATE_WAITING:
        return ""
    if not engine.manager.accepting:
        return "its manager is away or draining"
    if weights.rollout is None and weights.retry_at == math.inf:
        return HEALED
    ranks = rollout.offer.group_ranks
    if ranks and not rollout.begun and ranks % engines:
        return RANKS_DIFFER.format(ranks, engines)
    if ranks and rollout.begun:
        return (weights.told.reason or "it came after the group was formed") + ANOTHER_PUBLISH
    # Of an earlier rollout it may be of another job, and name where that one's weights were.
    return weights.told.reason if weights.rollout in (None, rollout.token) else ""


def job_status(state: SchedulerState, job: Job, now: float) -> job_pb2.JobStatus:
    """A job, with its defaults filled in."""
    counts = {state.value: count for state, count in job.state_counts.items() if count}
    lease, request = job.lease, job.request
    status = job_pb2.JobStatus(
        spec=job_pb2.JobSpec.FromString(request.spec),
        open_trajectories=len(job.trajectories),
        waiting_trajectories=len(state.waiting_trajectories.get(request.job_id, ())),
        actions=counts,
        failures=job.failure_counts,
        policy_version=job.policy_version,
        sessions=len(lease.sessions),
        expired=lease.expired,
        forgotten_actions=len(job.forgotten),
        dead_sandboxes=job.dead_sandboxes,
        rollouts=rollouts_of(state, request.job_id, now),
        buffer=buffer_status(state, job, now),
        life=life_of(job.begun_after),
        cost=cost_message(job.account.until(now)),
    )
    status.spec.share = request.weight
    status.spec.priority_class = job_pb2.PriorityClass.ValueType(request.priority_class)
    if not request.detached and not status.spec.HasField("grace"):
        fill_duration(status.spec.grace, grace_of(state, job))
    if lease.ends_at is not None:
        left = status.closes_in if lease.expired else status.expires_in
        left.CopyFrom(to_duration(max(lease.ends_at - now, 0.0)))
    _fill_idleness(status, state, job, now)
    return status


def _fill_idleness(status: job_pb2.JobStatus, state: SchedulerState, job: Job, now: float) -> None:
    timeout, due = idle_timeout_of(state, job), idle_at(state, job)
    if timeout is None or due is None:
        return
    if not status.spec.HasField("idle_timeout"):
        fill_duration(status.spec.idle_timeout, timeout)
    if not job.open_actions:
        status.idle_closes_in.CopyFrom(to_duration(max(due - now, 0.0)))


def trajectory_status(job: Job, trajectory_id: str, now: float) -> job_pb2.TrajectoryStatus:
    """A trajectory of a job, open or closed, with its defaults filled in."""
    status = job_pb2.TrajectoryStatus(spec=job_pb2.TrajectorySpec.FromString(job.trajectory_specs[trajectory_id]))
    if not status.spec.idle_timeout.ByteSize():
        fill_duration(status.spec.idle_timeout, DEFAULT_IDLE_TIMEOUT)
    if status.spec.HasField("group"):
        _fill_group(status.spec.group)
    trajectory = job.trajectories.get(trajectory_id)
    if trajectory is not None:
        live = job_pb2.TrajectoryStatus(
            open_actions=len(trajectory.open_actions),
            admitted=trajectory.admitted_at is not None,
            sandbox_id=trajectory.sandbox_id,
            manager_id=trajectory.manager_id,
            policy_version=trajectory.policy_version,
            cost=cost_message(trajectory.account.until(now)),
        )
        status.MergeFrom(live)
    else:
        closed = job.closed_trajectories[trajectory_id]
        status.end, status.reason = to_wire(closed.end), closed.reason
        status.policy_version = closed.policy_version
        status.cost.CopyFrom(cost_message(closed.cost))
    return status


def _fill_group(spec: job_pb2.GroupSpec) -> None:
    spec.quorum = spec.quorum or spec.size
    spec.on_infra = spec.on_infra or job_pb2.ON_INFRA_REPLACE


def group_status(job: Job, group_id: str, group: Group, now: float) -> job_pb2.GroupStatus:
    """A group of a job."""
    status = job_pb2.GroupStatus(
        spec=job_pb2.GroupSpec(
            group_id=group_id,
            size=group.size,
            quorum=group.quorum,
            on_infra=job_pb2.OnInfra.ValueType(group.on_infra),
            infra_budget=group.infra_budget if group.infra_budget < NO_BUDGET else None,
        ),
        lost=group.lost,
        has_quorum=group.has_quorum,
        masked=sorted(group.masked),
        dropped=sorted(group.dropped),
        cost=cost_message(group_cost(job, group, now)),
    )
    _fill_group(status.spec)
    for member in group.members:
        closed = job.closed_trajectories.get(member)
        if closed is None:
            status.open.append(member)
        elif closed.end is TrajectoryEnd.COMPLETED:
            status.completed.append(member)
        else:
            status.abandoned.append(member)
    return status


# Lists of jobs, trajectories and groups, read from the core between two of its steps and answered page by page.

# A millisecond or two.
MOST_ON_LOOP = 10_000


async def list_jobs(
    state: SchedulerState, request: client_service_pb2.ListJobsRequest, now: float, sees: Callable[[str], bool]
) -> client_service_pb2.ListJobsResponse:
    """Open jobs that the caller sees, or the one that is asked for.

    Raises:
        RefusedError: NOT_FOUND if that is not open.
    """
    jobs = [open_job(state, request.job_id)] if request.job_id else state.jobs.values()
    jobs = [job for job in jobs if sees(job.request.job_id)]
    told = await in_turns(made_of(jobs, lambda job: job_status(state, job, now)))
    return client_service_pb2.ListJobsResponse(jobs=told)


async def list_trajectories(
    state: SchedulerState, request: client_service_pb2.ListTrajectoriesRequest, now: float
) -> client_service_pb2.ListTrajectoriesResponse:
    """A page of a job's trajectories, or the one that is asked for, which may be closed.

    Raises:
        RefusedError: NOT_FOUND if there is no such job, trajectory or group; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    if request.trajectory_id:
        if request.trajectory_id not in job.trajectory_specs:
            raise unknown_trajectory(job, request.trajectory_id)
        found: Iterable[str] = [request.trajectory_id]
    else:
        found = job.trajectory_specs if request.closed else job.trajectories
    if request.group_id:
        group = job.groups.get(request.group_id)
        if group is None:
            raise unknown_group(job, request.group_id)
        siblings = group.members.keys() | group.lost.keys()
        found = [each for each in found if each in siblings]
    page, more = await _page(found, request.after, request.page_size)
    told = await in_turns(made_of(page, lambda each: _trajectory_status(job, each, now)))
    return client_service_pb2.ListTrajectoriesResponse(trajectories=filter(None, told), more=more)


def _trajectory_status(job: Job, trajectory_id: str, now: float) -> job_pb2.TrajectoryStatus | None:
    """A trajectory of a page; None if it was forgotten since the page was chosen."""
    return trajectory_status(job, trajectory_id, now) if trajectory_id in job.trajectory_specs else None


async def list_groups(
    state: SchedulerState, request: client_service_pb2.ListGroupsRequest, now: float
) -> client_service_pb2.ListGroupsResponse:
    """A page of a job's groups, or the one that is asked for.

    Raises:
        RefusedError: NOT_FOUND if there is no such job or group; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    if request.group_id and request.group_id not in job.groups:
        raise unknown_group(job, request.group_id)
    found: Iterable[str] = [request.group_id] if request.group_id else job.groups
    page, more = await _page(found, request.after, request.page_size)
    known = [(each, job.groups[each]) for each in page if each in job.groups]
    told = await in_turns(made_of(known, lambda each: group_status(job, *each, now)))
    return client_service_pb2.ListGroupsResponse(groups=told, more=more)


async def _page(ids: Iterable[str], after: str, page_size: int) -> tuple[list[str], bool]:
    """The first ids after one, by name order, and whether there are more; of very many, sought beside the loop."""
    size = int(within("page_size", page_size, 0, MAX_PAGE)) or DEFAULT_PAGE
    known = list(ids)
    if len(known) <= MOST_ON_LOOP:
        found = _first_after(known, after, size + 1)
    else:
        found = await anyio.to_thread.run_sync(_first_after, known, after, size + 1)
    return found[:size], len(found) > size


def _first_after(ids: Sequence[str], after: str, count: int) -> list[str]:
    return heapq.nsmallest(count, (each for each in ids if each > after))
