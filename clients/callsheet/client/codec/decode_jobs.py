"""From the contract's messages about jobs, trajectories and groups to the client's values."""

from __future__ import annotations

from callsheet.client.codec.encode_batches import decode_buffer_status
from callsheet.client.codec.encode_weights import decode_rollout
from callsheet.client.codec.fields import by_number, take, take_seconds
from callsheet.client.words.jobs import (
    GroupDescription,
    JobDescription,
    OnInfra,
    Opening,
    PriorityClass,
    Staleness,
    TrajectoryDescription,
    TrajectoryEnd,
)
from callsheet.client.words.status import GroupStatus, JobStatus, TrajectoryStatus
from callsheet.v1 import job_pb2

_PRIORITY_CLASS = by_number(PriorityClass, "PRIORITY_CLASS_", job_pb2.PriorityClass)
_ON_INFRA = by_number(OnInfra, "ON_INFRA_", job_pb2.OnInfra)
_OPENING = by_number(Opening, "OPENING_", job_pb2.Opening)
_TRAJECTORY_END = by_number(TrajectoryEnd, "TRAJECTORY_END_", job_pb2.TrajectoryEnd)


def opening_of(number: int) -> Opening:
    """Returns what an open found."""
    return _OPENING.get(number, Opening.CREATED)


def end_of(number: int) -> TrajectoryEnd | None:
    """Returns how a trajectory ended; None if it is open."""
    return _TRAJECTORY_END.get(number)


def decode_job_status(message: job_pb2.JobStatus) -> JobStatus:
    """Returns the status of a job."""
    return take(
        JobStatus,
        message,
        spec=_job(message.spec),
        expires_in_s=take_seconds(message, "expires_in"),
        closes_in_s=take_seconds(message, "closes_in"),
        idle_closes_in_s=take_seconds(message, "idle_closes_in"),
        rollouts=tuple(map(decode_rollout, message.rollouts)),
        buffer=decode_buffer_status(message.buffer),
    )


def decode_trajectory_status(message: job_pb2.TrajectoryStatus) -> TrajectoryStatus:
    """Returns the status of a trajectory."""
    described = take(
        TrajectoryDescription,
        message.spec,
        group=_group(message.spec.group) if message.spec.HasField("group") else None,
        idle_timeout_s=take_seconds(message.spec, "idle_timeout"),
        deadline_s=take_seconds(message.spec, "deadline"),
    )
    return take(TrajectoryStatus, message, spec=described, end=end_of(message.end))


def decode_group_status(message: job_pb2.GroupStatus) -> GroupStatus:
    """Returns the status of a group."""
    return take(GroupStatus, message, spec=_group(message.spec))


def _job(spec: job_pb2.JobSpec) -> JobDescription:
    return JobDescription(
        spec.job_id,
        spec.share or 1.0,
        _PRIORITY_CLASS.get(spec.priority_class, PriorityClass.TRAIN),
        spec.max_actions or None,
        _staleness(spec.staleness) if spec.HasField("staleness") else None,
        take_seconds(spec, "grace"),
        spec.detached,
        take_seconds(spec, "idle_timeout"),
        spec.dead_sandbox_is_infra,
        spec.max_buffered or None,
    )


def _staleness(message: job_pb2.Staleness) -> Staleness:
    return Staleness(
        message.max_versions or None,
        admit_within=message.admit_within if message.HasField("admit_within") else None,
        select_within=message.select_within if message.HasField("select_within") else None,
    )


def _group(spec: job_pb2.GroupSpec) -> GroupDescription:
    return GroupDescription(
        spec.group_id,
        spec.size,
        spec.quorum or None,
        _ON_INFRA.get(spec.on_infra, OnInfra.REPLACE),
        spec.infra_budget if spec.HasField("infra_budget") else None,
    )
