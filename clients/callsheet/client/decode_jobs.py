"""From the contract's messages about jobs, trajectories and groups to the client's values."""

from __future__ import annotations

from callsheet.client.decode import by_number
from callsheet.client.jobs import (
    GroupDescription,
    JobDescription,
    OnInfra,
    Opening,
    PriorityClass,
    Staleness,
    TrajectoryDescription,
    TrajectoryEnd,
)
from callsheet.client.status import GroupStatus, JobStatus, TrajectoryStatus
from callsheet.v1 import job_pb2
from google.protobuf import duration_pb2

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
    return JobStatus(
        _job(message.spec),
        message.open_trajectories,
        message.waiting_trajectories,
        dict(message.actions),
        dict(message.failures),
        message.policy_version,
        message.sessions,
        _seconds(message.expires_in) if message.HasField("expires_in") else None,
        message.expired,
        _seconds(message.closes_in) if message.HasField("closes_in") else None,
    )


def decode_trajectory_status(message: job_pb2.TrajectoryStatus) -> TrajectoryStatus:
    """Returns the status of a trajectory."""
    spec = message.spec
    described = TrajectoryDescription(
        spec.job_id,
        spec.trajectory_id,
        _group(spec.group) if spec.HasField("group") else None,
        _seconds(spec.idle_timeout) if spec.HasField("idle_timeout") else None,
        _seconds(spec.deadline) if spec.HasField("deadline") else None,
    )
    return TrajectoryStatus(
        described,
        end_of(message.end),
        message.reason,
        message.open_actions,
        message.admitted,
        message.sandbox_id,
        message.manager_id,
        message.policy_version,
    )


def decode_group_status(message: job_pb2.GroupStatus) -> GroupStatus:
    """Returns the status of a group."""
    return GroupStatus(
        _group(message.spec),
        tuple(message.open),
        tuple(message.completed),
        tuple(message.abandoned),
        tuple(message.lost),
        message.has_quorum,
    )


def _job(spec: job_pb2.JobSpec) -> JobDescription:
    bound = spec.staleness.max_versions
    return JobDescription(
        spec.job_id,
        spec.share or 1.0,
        _PRIORITY_CLASS.get(spec.priority_class, PriorityClass.TRAIN),
        spec.max_actions or None,
        Staleness(bound) if bound else None,
        _seconds(spec.grace) if spec.HasField("grace") else None,
        spec.detached,
    )


def _group(spec: job_pb2.GroupSpec) -> GroupDescription:
    return GroupDescription(
        spec.group_id, spec.size, spec.quorum or None, _ON_INFRA.get(spec.on_infra, OnInfra.REPLACE)
    )


def _seconds(duration: duration_pb2.Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
