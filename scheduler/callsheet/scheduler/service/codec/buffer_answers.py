"""A job's buffer and its batches as messages."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.jobs.pacing import PacingGate, max_buffered_of
from callsheet.scheduler.core.state.buffer import Bundle, LeasedBatch
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.service.codec.durations import to_duration
from callsheet.scheduler.service.turns import in_turns, made_of
from callsheet.v1 import buffer_pb2, client_service_pb2
from callsheet.v1.rules.fields import within

DEFAULT_PAGE = 1_000
MAX_PAGE = 10_000


async def batch_message(job: Job, batch: LeasedBatch, now: float) -> buffer_pb2.TrajectoryBatch:
    """Returns a batch, for its taker."""
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
    """Lists a job's buffer, the oldest trajectories first and without payloads.

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
    """Returns a job's buffer in figures."""
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
