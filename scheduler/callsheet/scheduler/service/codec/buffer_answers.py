"""A job's buffer and its batches as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.jobs.pacing import PacingGate, max_buffered_of
from callsheet.scheduler.core.state.buffer import BufferedTrajectory, Bundle, LeasedBatch
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.service.codec.refusals import fill_duration
from callsheet.scheduler.service.codec.rules import within
from callsheet.v1 import buffer_pb2, client_service_pb2

DEFAULT_PAGE = 1_000
MAX_PAGE = 10_000


def batch_message(job: Job, batch: LeasedBatch, now: float) -> buffer_pb2.TrajectoryBatch:
    """A batch, for its taker."""
    message = buffer_pb2.TrajectoryBatch(batch_id=batch.batch_id, policy_version=batch.policy_version)
    fill_duration(message.lease, max(batch.ends_at - now, 0.0))
    for key in batch.keys:
        bundle = job.buffer.bundles[key]
        message.trajectories.extend(_trajectories(bundle, batch.policy_version, now))
    return message


def _trajectories(bundle: Bundle, version: int, now: float) -> Iterator[buffer_pb2.BufferedTrajectory]:
    for each in bundle.members:
        message = buffer_pb2.BufferedTrajectory(
            trajectory_id=each.trajectory_id,
            group_id=each.group_id,
            result=buffer_pb2.TrajectoryResult.FromString(each.result.encoded),
            policy_version=each.policy_version,
            staleness=version - each.policy_version,
            batch_id=bundle.batch_id,
            whole=bundle.whole,
        )
        fill_duration(message.took, each.took_s)
        fill_duration(message.waited, max(now - each.finished_at, 0.0))
        yield message


def list_buffer(
    state: SchedulerState, request: client_service_pb2.ListBufferRequest, now: float
) -> client_service_pb2.ListBufferResponse:
    """What is in a job's buffer, the oldest first and without payloads.

    Raises:
        RefusedError: NOT_FOUND if the job is not open; INVALID_ARGUMENT naming the field.
    """
    job = open_job(state, request.job_id)
    size = int(within("page_size", request.page_size, 0, MAX_PAGE)) or DEFAULT_PAGE
    response = client_service_pb2.ListBufferResponse()
    for bundle in sorted(job.buffer.bundles.values(), key=lambda each: each.number):
        for message in _trajectories(bundle, job.policy_version, now):
            if len(response.trajectories) == size:
                response.more = True
                return response
            message.result.ClearField("payload")
            response.trajectories.append(message)
    return response


def buffer_status(state: SchedulerState, job: Job, now: float) -> buffer_pb2.BufferStatus:
    """A job's buffer in figures."""
    buffer, gate = job.buffer, PacingGate(state, job)
    status = buffer_pb2.BufferStatus(
        ready=buffer.ready_count,
        leased=buffer.held - buffer.ready_count,
        incomplete=sum(len(each.members) for each in buffer.incomplete.values()),
        bound=max_buffered_of(state, job),
        held_up="" if gate.has_room else gate.reason,
        waiting_takers=len(buffer.takers),
        counts={fate: buffer.lengths.total(fate) for fate in buffer.lengths.counts},
        staleness=buffer.staleness,
    )
    for batch in buffer.batches.values():
        _add_batch(status, batch, buffer.members_of(batch), now)
    for share in buffer.lengths.shares():
        message = status.lengths.add(trajectories=share.trajectories, trained=share.trained)
        fill_duration(message.up_to, share.up_to_s)
    return status


def _add_batch(
    status: buffer_pb2.BufferStatus, batch: LeasedBatch, members: Iterable[BufferedTrajectory], now: float
) -> None:
    message = status.batches.add(batch_id=batch.batch_id, trajectories=len(list(members)))
    fill_duration(message.lease, max(batch.ends_at - now, 0.0))
