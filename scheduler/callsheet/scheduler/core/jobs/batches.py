"""Batches: finished trajectories enter the buffer of their job, and trainers take, acknowledge and give back.

A batch is leased to its taker. It is acknowledged once, and then never comes back; or its lease ends first, and it goes
back whole. Both are journalled before anybody is told. Its id names no other batch afterwards.
"""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.jobs.pacing import holds_back, max_buffered_of, most_buffered_of
from callsheet.scheduler.core.state.buffer import BufferedTrajectory, BundleKey, LeasedBatch, choose
from callsheet.scheduler.core.state.entities import Group, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.waiting_takers import MAX_TAKERS, WaitingTaker
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import GiveBatch
from callsheet.scheduler.core.words.model import TrajectoryEnd, TrajectoryResult
from callsheet.scheduler.core.words.records import (
    BatchAcknowledged,
    BatchReturned,
    BatchTaken,
    BufferedTrajectoriesRemoved,
    TrajectoryBuffered,
)
from callsheet.scheduler.core.words.recovered import RecoveredBatch
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, failed_precondition, invalid, not_found

# A group with finished members, none of them open and seats left, takes no more after so many seconds.
GROUP_IDLE_S: Final = 3600.0


def check_room_for_result(state: SchedulerState, trajectory: Trajectory, result: TrajectoryResult) -> None:
    """Checks that the buffer of its job has room for a trajectory that finishes.

    Raises:
        RefusedError: RESOURCE_EXHAUSTED naming the bound that is reached, and when to try again.
    """
    job, size, retry_after = trajectory.job, len(result.encoded), state.settings.full_retry_after
    of_all = sum(each.buffer.size for each in state.jobs.values())
    bounds = (of_all, state.settings.max_open_bytes), (job.buffer.size, state.settings.max_job_open_bytes)
    for held, most_bytes in bounds:
        if held + size > most_bytes:
            rule = f"must fit beside the {held} bytes of finished trajectories, which may have {most_bytes}"
            raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "result", f"{size} bytes", rule, retry_after)
    count, most = job.buffer.count, most_buffered_of(state, job)
    if count >= most and not _is_waited_for(job, trajectory):
        rule = f"the job's buffer holds {count} finished trajectories of {most}: take batches and acknowledge them"
        raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "result", count, rule, retry_after)


def _is_waited_for(job: Job, trajectory: Trajectory) -> bool:
    """Returns whether a trajectory helps requests that want more than is ready.

    Of the trajectories in groups, only those of the oldest incomplete group help.
    """
    buffer, group = job.buffer, trajectory.request.group
    if buffer.takers.wanted <= buffer.ready_count:
        return False
    return group is None or next(iter(buffer.incomplete), (group.group_id, "")) == (group.group_id, "")


def buffer_result(state: SchedulerState, trajectory: Trajectory, result: TrajectoryResult, now: float) -> None:
    """A trajectory finished with a result: it is in the buffer of its job, and given out once its bundle is whole."""
    job, request = trajectory.job, trajectory.request
    group_id = request.group.group_id if request.group is not None else ""
    number = job.buffer.last_number + 1
    finished = BufferedTrajectory(
        request.trajectory_id, group_id, number, trajectory.policy_version, trajectory.began_at, now, result
    )
    job.buffer.lengths.note("finished", finished.took_s)
    bundle = job.buffer.add(finished)
    state.persist(
        TrajectoryBuffered(
            request.job_id,
            request.trajectory_id,
            group_id,
            number,
            finished.policy_version,
            finished.opened_at,
            now,
            result.encoded,
        )
    )
    if not group_id:
        job.buffer.make_whole(bundle)


def is_over(job: Job, group: Group) -> bool:
    """Returns whether no other member of a group can finish: the group has its quorum, or no seat is free or open."""
    if job.has_open_members(group):
        return False
    return group.has_quorum or group.cancelled or len(group.members) >= group.size


def member_closed(state: SchedulerState, job: Job, group_id: str, now: float) -> None:
    """A trajectory was closed, of a group if one is named: its bundle may be whole, and somebody may wait for that."""
    if job.over:
        return
    bundle = job.buffer.bundles.get((group_id, "")) if group_id else None
    if bundle is not None and _can_grow(job, group_id):
        _watch_idle_group(state, job, group_id, now)
    elif bundle is not None:
        state.timers.drop(("group", (job.request.job_id, group_id)))
        job.buffer.make_whole(bundle)
    serve_takers(state, job, now)


def _can_grow(job: Job, group_id: str) -> bool:
    """Returns whether another member of a group can finish; False if the group is forgotten."""
    group = job.groups.get(group_id)
    return group is not None and not is_over(job, group)


def _watch_idle_group(state: SchedulerState, job: Job, group_id: str, now: float) -> None:
    """A group with finished members and free seats is looked after once none of it is open."""
    if not job.has_open_members(job.groups[group_id]):
        state.timers.set(("group", (job.request.job_id, group_id)), now + GROUP_IDLE_S)


def serve_takers(state: SchedulerState, job: Job, now: float) -> None:
    """Gives batches to those who wait, in their order, as far as there are enough trajectories."""
    buffer = job.buffer
    buffer.takers.tidy(now)
    while (first := buffer.takers.first) is not None:
        _drop_stale(state, job)
        if buffer.ready_count < first.at_least:
            return
        choice = choose(buffer.ready, first.at_least, first.at_most)
        if not choice.full and holds_back(job):
            return
        buffer.takers.remove(first)
        _lease(state, job, first, choice.keys, now)


def _drop_stale(state: SchedulerState, job: Job) -> None:
    """Drops what the job's staleness policy does not train on any more: bundles as a whole, by their oldest member."""
    within, buffer = job.request.staleness.select_within, job.buffer
    if within is None or min(buffer.ready_versions, default=job.policy_version) >= job.policy_version - within:
        return
    stale = [key for key, bundle in buffer.ready.items() if bundle.policy_version < job.policy_version - within]
    for gone in remove_bundles(state, job, stale):
        buffer.lengths.note("stale", gone.took_s)


def _lease(state: SchedulerState, job: Job, request: WaitingTaker, keys: tuple[BundleKey, ...], now: float) -> None:
    batch = LeasedBatch(
        request.batch_id,
        request.at_most,
        request.lease_s,
        now + request.lease_s,
        keys,
        job.policy_version,
        request.taker,
    )
    job.buffer.lease(batch)
    state.timers.set(("batch", (job.request.job_id, batch.batch_id)), batch.ends_at)
    members = tuple(each.trajectory_id for each in job.buffer.members_of(batch))
    state.persist(
        BatchTaken(job.request.job_id, batch.batch_id, batch.size, batch.lease_s, batch.policy_version, members)
    )
    state.emit(GiveBatch(request.taker, job.request.job_id, batch.batch_id))


def on_batch_requested(state: SchedulerState, event: events.BatchRequested, now: float) -> None:
    """Gives a batch now or later; the same id again is given the same batch, with its lease as it is."""
    job = open_job(state, event.job_id, event.reply_to, works_at=now)
    buffer, most = job.buffer, max_buffered_of(state, job)
    if event.at_least > most:
        raise invalid("at_least", event.at_least, f"must be at most {most}, which the job's buffer holds")
    if event.batch_id in buffer.acknowledged:
        rule = "was acknowledged before: take another one under a new id"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "batch_id", event.batch_id, rule)
    if event.batch_id in buffer.returned:
        rule = "names a batch that went back, as its lease ended or it was given back: take another under a new id"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "batch_id", event.batch_id, rule)
    if (leased := buffer.batches.get(event.batch_id)) is not None:
        leased.taker, leased.told = event.taker, True
        state.accept(event.reply_to)
        state.emit(GiveBatch(event.taker, event.job_id, event.batch_id))
        return
    buffer.takers.tidy(now)
    if len(buffer.takers) >= MAX_TAKERS and not buffer.takers.has(event.batch_id):
        rule = f"the job has as many requests waiting for a batch as may be, {MAX_TAKERS}"
        retry_after = state.settings.full_retry_after
        raise RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "job_id", event.job_id, rule, retry_after)
    request = WaitingTaker(event.taker, event.batch_id, event.at_least, event.at_most, event.lease_s)
    if not buffer.takers.put(request):
        buffer.sizes.append(event.at_most)
    state.accept(event.reply_to)
    serve_takers(state, job, now)


def on_batch_missed(state: SchedulerState, event: events.BatchMissed, now: float) -> None:
    """Gives back the batch that was leased to a request whose rpc has ended without an answer.

    No caller learned the batch's id, so the id may be used again. A batch of an earlier request stays leased.
    """
    job = state.jobs.get(event.job_id)
    batch = job.buffer.batches.get(event.batch_id) if job is not None else None
    if job is not None and batch is not None and batch.taker is event.taker and not batch.told:
        give_back(state, job, batch, now, keeps_id=False)


def on_batch_settled(state: SchedulerState, event: events.BatchSettled, now: float) -> None:
    """Acknowledges a batch, gives it back or extends its lease. An acknowledgement may be repeated."""
    job = open_job(state, event.job_id, event.reply_to, works_at=now)
    batch = job.buffer.batches.get(event.batch_id)
    if batch is None:
        if event.batch_id not in job.buffer.acknowledged:
            rule = "names no batch that is leased: its lease has ended, or it was given back, or there never was one"
            raise not_found("batch_id", event.batch_id, rule)
        if event.settlement is not events.Settlement.ACKNOWLEDGE:
            raise failed_precondition("batch_id", event.batch_id, "was acknowledged and is over")
    elif event.settlement is events.Settlement.ACKNOWLEDGE:
        _acknowledge(state, job, batch)
        serve_takers(state, job, now)
    elif event.settlement is events.Settlement.GIVE_BACK:
        give_back(state, job, batch, now)
    else:
        batch.ends_at = now + batch.lease_s
        state.timers.set(("batch", (event.job_id, event.batch_id)), batch.ends_at)
    state.accept(event.reply_to)


def _acknowledge(state: SchedulerState, job: Job, batch: LeasedBatch) -> None:
    job_id, buffer = job.request.job_id, job.buffer
    del buffer.batches[batch.batch_id]
    state.timers.drop(("batch", (job_id, batch.batch_id)))
    members = buffer.remove(batch.keys)
    for each in members:
        staleness = batch.policy_version - each.policy_version
        buffer.lengths.note("trained", each.took_s)
        buffer.staleness[staleness] = buffer.staleness.get(staleness, 0) + 1
    ids = tuple(each.trajectory_id for each in members)
    forgotten = tuple(buffer.note_acknowledged(batch.batch_id))
    state.persist(BatchAcknowledged(job_id, batch.batch_id, ids, forgotten, batch.size))


def give_back(state: SchedulerState, job: Job, batch: LeasedBatch, now: float, *, keeps_id: bool = True) -> None:
    """Puts a batch back, whole: its bundles are given out again, at the places that they had."""
    job_id = job.request.job_id
    job.buffer.give_back(batch)
    state.timers.drop(("batch", (job_id, batch.batch_id)))
    forgotten = tuple(job.buffer.note_returned(batch.batch_id)) if keeps_id else (batch.batch_id,)
    state.persist(BatchReturned(job_id, batch.batch_id, forgotten))
    serve_takers(state, job, now)


def give_all_back(state: SchedulerState, job: Job, now: float) -> None:
    """The clients of a job are gone: what they had taken goes back, and nobody waits."""
    job.buffer.takers.clear()
    for batch in list(job.buffer.batches.values()):
        give_back(state, job, batch, now)


def batch_due(state: SchedulerState, job_id: str, batch_id: str, now: float) -> None:
    """A lease has ended: the batch goes back."""
    job = state.jobs.get(job_id)
    batch = job.buffer.batches.get(batch_id) if job is not None else None
    if job is None or batch is None:
        return
    if now < batch.ends_at:
        state.timers.set(("batch", (job_id, batch_id)), batch.ends_at)
    else:
        give_back(state, job, batch, now)


def drop_buffer(state: SchedulerState, job: Job) -> None:
    """A job is closed, and its buffer with it."""
    job.buffer.takers.clear()
    for batch_id in job.buffer.batches:
        state.timers.drop(("batch", (job.request.job_id, batch_id)))
    for group_id, _ in job.buffer.incomplete:
        state.timers.drop(("group", (job.request.job_id, group_id)))


def buffered(job: Job) -> list[BufferedTrajectory]:
    """All trajectories in the buffer of a job."""
    return [member for bundle in job.buffer.bundles.values() for member in bundle.members]


def remove_bundles(state: SchedulerState, job: Job, keys: list[BundleKey]) -> list[BufferedTrajectory]:
    """Takes whole bundles that are in no batch out of the buffer for good."""
    gone = job.buffer.remove(keys)
    if gone:
        ids = tuple(each.trajectory_id for each in gone)
        state.persist(BufferedTrajectoriesRemoved(job.request.job_id, ids))
    return gone


def check_same_result(job: Job, trajectory_id: str, end: TrajectoryEnd, result: TrajectoryResult | None) -> None:
    """A repeated close may tell its result again, but no other one.

    Raises:
        RefusedError: ALREADY_EXISTS if the result that is still in the buffer is another.
    """
    if result is None or end is not TrajectoryEnd.COMPLETED:
        return
    for each in buffered(job):
        if each.trajectory_id == trajectory_id and each.result.encoded != result.encoded:
            raise RefusedError(RefusalCode.ALREADY_EXISTS, "result", "", "the trajectory finished with another result")


def restore_whole(state: SchedulerState, job: Job, now: float) -> None:
    """After a restart: which bundles no other member will join. The time without open members begins anew."""
    for bundle in list(job.buffer.incomplete.values()):
        if _can_grow(job, bundle.key[0]):
            _watch_idle_group(state, job, bundle.key[0], now)
        else:
            job.buffer.make_whole(bundle)


def restore_batch(state: SchedulerState, row: RecoveredBatch, now: float) -> None:
    """After a restart: a batch that is leased still, or was acknowledged, or went back."""
    buffer = state.jobs[row.job_id].buffer
    if row.size:
        buffer.sizes.append(row.size)
    if row.acknowledged:
        buffer.note_acknowledged(row.batch_id)
        return
    if not row.trajectory_ids:
        buffer.note_returned(row.batch_id)
        return
    taken = set(row.trajectory_ids)
    bundles = [each for each in buffer.bundles.values() if each.members[0].trajectory_id in taken]
    for bundle in bundles:
        buffer.make_whole(bundle)
    ordered = tuple(bundle.key for bundle in sorted(bundles, key=lambda each: each.number))
    batch = LeasedBatch(row.batch_id, row.size, row.lease_s, now + row.lease_s, ordered, row.policy_version, told=True)
    buffer.lease(batch)
    state.timers.set(("batch", (row.job_id, row.batch_id)), batch.ends_at)
