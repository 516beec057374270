"""From descriptions of jobs, groups and trajectories to the messages of the contract. Pure."""

from __future__ import annotations

from callsheet.client.codec.fields import at_least_one, is_number, numbers, positive, put, put_durations
from callsheet.client.errors import invalid
from callsheet.client.words.arguments import identifier, instance, optional
from callsheet.client.words.jobs import (
    DEFAULT_ADMIT_WITHIN,
    GroupDescription,
    JobDescription,
    OnInfra,
    PriorityClass,
    Staleness,
    TrajectoryDescription,
    TrajectoryEnd,
)
from callsheet.v1 import job_pb2

_PRIORITY_CLASS = numbers(PriorityClass, "PRIORITY_CLASS_", job_pb2.PriorityClass)
_ON_INFRA = numbers(OnInfra, "ON_INFRA_", job_pb2.OnInfra)
_TRAJECTORY_END = numbers(TrajectoryEnd, "TRAJECTORY_END_", job_pb2.TrajectoryEnd)


def encode_job(job: JobDescription) -> job_pb2.JobSpec:
    """Returns the message of a job.

    Raises:
        InvalidArgumentError: A value that the contract cannot carry or that breaks one of its static rules.
    """
    priority = instance("priority_class", job.priority_class, PriorityClass, "a PriorityClass")
    spec = job_pb2.JobSpec(priority_class=_PRIORITY_CLASS[priority])
    put(
        spec,
        "",
        job_id=identifier("job_id", job.job_id),
        share=positive("share", job.share),
        max_actions=at_least_one("max_actions", job.max_actions),
        max_buffered=at_least_one("max_buffered", job.max_buffered),
        detached=instance("detached", job.detached, bool, "True or False"),
        dead_sandbox_is_infra=instance("dead_sandbox_is_infra", job.dead_sandbox_is_infra, bool, "True or False"),
    )
    staleness = optional("staleness", job.staleness, Staleness, "a Staleness, for instance Staleness(max_versions=2)")
    if staleness is not None:
        _put_staleness(spec.staleness, staleness)
    put_durations(spec, "", grace=job.grace_s, idle_timeout=job.idle_timeout_s)
    return spec


def _put_staleness(message: job_pb2.Staleness, staleness: Staleness) -> None:
    message.SetInParent()
    most = at_least_one("staleness.max_versions", staleness.max_versions)
    put(message, "staleness", max_versions=most)
    given = {name: getattr(staleness, name) for name in ("admit_within", "select_within")}
    if not any((most, *(value is not None for value in given.values()))):
        given["admit_within"] = DEFAULT_ADMIT_WITHIN
    for name, value in given.items():
        if value is not None:
            if not is_number(value) or value < 0:
                raise invalid(f"staleness.{name}", value, "0 or more")
            put(message, "staleness", **{name: value})


def encode_trajectory(trajectory: TrajectoryDescription) -> job_pb2.TrajectorySpec:
    """Returns the message of a trajectory; raises InvalidArgumentError like `encode_job`."""
    spec = job_pb2.TrajectorySpec()
    put(spec, "", job_id=trajectory.job_id, trajectory_id=identifier("trajectory_id", trajectory.trajectory_id))
    if trajectory.group is not None:
        encode_group(spec.group, trajectory.group)
    put_durations(spec, "", idle_timeout=trajectory.idle_timeout_s, deadline=trajectory.deadline_s)
    return spec


def encode_group(message: job_pb2.GroupSpec, group: GroupDescription) -> None:
    """Fills in the message of a group; raises InvalidArgumentError like `encode_job`."""
    if group.size is None:
        raise invalid("group.size", None, "at least 1")
    size = at_least_one("group.size", group.size)
    quorum = at_least_one("group.quorum", group.quorum)
    if quorum > size:
        raise invalid("group.quorum", quorum, f"at most the group's size ({size})")
    put(message, "group", group_id=identifier("group.group_id", group.group_id), size=size, quorum=quorum)
    on_infra = instance("group.on_infra", group.on_infra, OnInfra, "an OnInfra")
    if on_infra is not OnInfra.REPLACE:
        message.on_infra = _ON_INFRA[on_infra]
    if group.infra_budget is not None:
        if not is_number(group.infra_budget) or group.infra_budget < 0:
            raise invalid("group.infra_budget", group.infra_budget, "0 or more")
        put(message, "group", infra_budget=group.infra_budget)


def encode_trajectory_end(end: TrajectoryEnd) -> job_pb2.TrajectoryEnd.ValueType:
    """Returns the contract's value."""
    number: job_pb2.TrajectoryEnd.ValueType = _TRAJECTORY_END[instance("end", end, TrajectoryEnd, "a TrajectoryEnd")]
    return number
