"""From published weights to the contract's messages, and their status back. Pure: uploads are collected, not made."""

from __future__ import annotations

from callsheet.client.codec.blobs import BlobWriter
from callsheet.client.codec.fields import by_number, put, put_durations, put_list, take, take_seconds
from callsheet.client.errors import invalid
from callsheet.client.words.arguments import instance, items
from callsheet.client.words.weights import (
    BroadcastTensor,
    Canary,
    EngineState,
    PublishedWeights,
    RolloutEngine,
    RolloutStatus,
    Tensors,
    TransferGroup,
)
from callsheet.v1 import client_service_pb2, weights_pb2

_MODES = {
    "drain": weights_pb2.UPDATE_MODE_DRAIN,
    "abort": weights_pb2.UPDATE_MODE_ABORT,
    "keep": weights_pb2.UPDATE_MODE_KEEP,
}
_MODE_NAMES = {number: name for name, number in _MODES.items()}
_STATES = by_number(EngineState, "ENGINE_STATE_", weights_pb2.EngineState)


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


def decode_rollout(message: weights_pb2.RolloutStatus) -> RolloutStatus:
    """Returns the status of a rollout."""
    engines = tuple(
        take(
            RolloutEngine,
            each,
            state=_STATES.get(each.state, EngineState.WAITING),
            retry_in_s=take_seconds(each, "retry_in"),
        )
        for each in message.engines
    )
    return take(RolloutStatus, message, mode=_MODE_NAMES.get(message.mode, "drain"), engines=engines)
