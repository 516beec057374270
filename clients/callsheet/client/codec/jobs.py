"""Jobs, groups, trajectories, batches and weights: to the messages of the contract.

Pure: uploads and fetches are collected, not made.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from callsheet.client.codec.fields import (
    BlobWriter,
    at_least_one,
    duration,
    is_number,
    numbers,
    positive,
    put,
    put_durations,
    put_list,
)
from callsheet.client.errors import invalid
from callsheet.client.words.arguments import identifier, instance, items, optional, whole
from callsheet.client.words.jobs import DEFAULT_ADMIT_WITHIN, BatchRequest
from callsheet.client.words.weights import PublishedWeights, Tensors
from callsheet.v1 import buffer_pb2, client_service_pb2, job_pb2, weights_pb2
from callsheet.v1.buffer_values import FinishedResult
from callsheet.v1.job_values import (
    ON_INFRA,
    PRIORITY_CLASS,
    TRAJECTORY_END,
    GroupDescription,
    JobDescription,
    OnInfra,
    PriorityClass,
    Staleness,
    TrajectoryDescription,
    TrajectoryEnd,
)
from callsheet.v1.names import MAX_BATCH, MAX_INLINE_RESULT
from callsheet.v1.weights_values import UPDATE_MODE, BroadcastTensor, Canary, TransferGroup

_PRIORITY_CLASS = numbers(PRIORITY_CLASS)
_ON_INFRA = numbers(ON_INFRA)
_TRAJECTORY_END = numbers(TRAJECTORY_END)
_MODES: dict[str, Any] = {mode.value: number for number, mode in UPDATE_MODE.items()}


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


def encode_result(result: FinishedResult) -> tuple[buffer_pb2.TrajectoryResult, dict[str, bytes]]:
    """Returns the message of a result, and the contents that have to be stored before it, by their SHA-256.

    Raises:
        InvalidArgumentError: A value does not fit; it is named.
    """
    if not (is_number(result.reward) and math.isfinite(result.reward)):
        raise invalid("reward", result.reward, "a finite number")
    message = buffer_pb2.TrajectoryResult(reward=result.reward)
    content = instance("payload", result.payload, bytes, "bytes")
    if len(content) <= MAX_INLINE_RESULT:
        if content:
            message.payload.inline = content
        return message, {}
    sha256 = hashlib.sha256(content).hexdigest()
    message.payload.reference.sha256, message.payload.reference.size = sha256, len(content)
    return message, {sha256: content}


def encode_batch_request(job_id: str, request: BatchRequest) -> client_service_pb2.TakeBatchRequest:
    """Returns the message of a request for a batch, whose wait is left to the caller.

    Raises:
        InvalidArgumentError: A value does not fit; it is named.
    """
    for name, most, rule in (("at_most", MAX_BATCH, "1 to 2,048"), ("at_least", request.at_most, "1 to at_most")):
        if not 1 <= whole(name, getattr(request, name), rule) <= most:
            raise invalid(name, getattr(request, name), f"{rule}, which is {most}" if most < MAX_BATCH else rule)
    duration("wait_s", request.wait_s)
    message = client_service_pb2.TakeBatchRequest()
    put(message, "", job_id=job_id, batch_id=request.batch_id, at_least=request.at_least, at_most=request.at_most)
    put_durations(message, "", lease=request.lease_s)
    return message


def encode_publish(
    job_id: str, version: int, weights: PublishedWeights | None
) -> tuple[client_service_pb2.PublishPolicyVersionRequest, dict[str, bytes]]:
    """Returns the request of a publish, and the contents that have to be stored before it, by their SHA-256.

    Raises:
        InvalidArgumentError: A value does not fit; it is named.
    """
    request = client_service_pb2.PublishPolicyVersionRequest()
    put(request, "", job_id=job_id, version=version)
    if weights is None:
        return request, {}
    plan, blobs = request.rollout, BlobWriter()
    mode = _MODES.get(weights.mode) if isinstance(weights.mode, str) else None
    if mode is None:
        raise invalid("mode", weights.mode, f"one of {', '.join(_MODES)}")
    plan.mode = mode
    put(plan, "", service=weights.service, at_once=weights.at_once)
    if plan.at_once < 1:
        raise invalid("at_once", weights.at_once, "at least 1")
    put_durations(plan, "", timeout=weights.timeout_s)
    _put_source(plan.source, weights, blobs)
    _put_canary(plan.canary, instance("canary", weights.canary, Canary, "a Canary"))
    return request, blobs.uploads


def _put_source(source: weights_pb2.WeightSource, weights: PublishedWeights, blobs: BlobWriter) -> None:
    match weights.source:
        case Tensors(content):
            source.tensors.CopyFrom(blobs.blob("source.content", content))
        case TransferGroup() as group:
            put(
                source.group,
                "source",
                address=group.address,
                port=group.port,
                group_name=group.group_name,
                world_size=group.world_size,
                backend=group.backend,
            )
            for each in items("source.tensors", group.tensors, BroadcastTensor, "a BroadcastTensor"):
                tensor = source.group.tensors.add()
                put(tensor, "source.tensors", name=each.name, dtype=each.dtype)
                put_list(tensor, "source.tensors", "shape", each.shape)
        case _:
            try:
                location = weights.location
            except TypeError:
                rule = "a path, a URI, Tensors or a TransferGroup"
                raise invalid("source", repr(weights.source), rule) from None
            if not isinstance(location, str) or not location:
                raise invalid("source", repr(weights.source), "a path or a URI that is not empty")
            put(source, "source", location=location)


def _put_canary(message: weights_pb2.Canary, canary: Canary) -> None:
    put_list(message, "canary", "prompt_token_ids", canary.prompt_token_ids)
    put_list(message.expected, "canary", "token_ids", canary.token_ids)
    put_list(message.expected, "canary", "log_probs", canary.log_probs)
    put(message, "canary", unchanged=canary.unchanged)
