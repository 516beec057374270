"""Results and batches to the contract's messages and back. Pure: uploads and fetches are collected, not made."""

from __future__ import annotations

import hashlib
import math

from callsheet.client.codec.blobs import BlobReader
from callsheet.client.codec.fields import duration, in_seconds, is_number, put, put_durations, take
from callsheet.client.errors import invalid
from callsheet.client.words.arguments import instance, whole
from callsheet.client.words.batch_values import (
    MAX_BATCH,
    BatchContent,
    BatchRequest,
    FinishedResult,
    FinishedTrajectory,
)
from callsheet.client.words.status import BufferStatus, LeasedBatch, LengthShare
from callsheet.v1 import buffer_pb2, client_service_pb2

MAX_INLINE_RESULT = 4096


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


def decode_batch(message: buffer_pb2.TrajectoryBatch, blobs: BlobReader) -> BatchContent:
    """Returns what is in a batch."""
    return BatchContent(
        message.batch_id,
        tuple(decode_finished(each, blobs) for each in message.trajectories),
        message.policy_version,
        in_seconds(message.lease),
    )


def decode_finished(message: buffer_pb2.BufferedTrajectory, blobs: BlobReader) -> FinishedTrajectory:
    """Returns a finished trajectory."""
    result = message.result
    return take(
        FinishedTrajectory,
        message,
        reward=result.reward,
        payload=blobs.read(result.payload) if result.HasField("payload") else b"",
        took_s=in_seconds(message.took),
        waited_s=in_seconds(message.waited),
    )


def decode_buffer_status(message: buffer_pb2.BufferStatus) -> BufferStatus:
    """Returns the figures of a job's buffer."""
    return take(
        BufferStatus,
        message,
        batches=tuple(
            LeasedBatch(each.batch_id, each.trajectories, in_seconds(each.lease)) for each in message.batches
        ),
        counts=dict(message.counts),
        staleness=dict(message.staleness),
        lengths=tuple(LengthShare(in_seconds(each.up_to), each.trajectories, each.trained) for each in message.lengths),
    )
