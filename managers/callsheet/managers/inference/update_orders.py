"""Turns the scheduler's message about new weights into an order for the engine."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.inference.proof import CanaryAnswer
from callsheet.managers.inference.weight_places import WeightPlaces
from callsheet.managers.inference.weights import (
    DiskWeights,
    FirstWeights,
    GroupWeights,
    TensorSpec,
    TensorWeights,
    UpdateMode,
    WeightSource,
)
from callsheet.v1 import manager_service_pb2, weights_pb2

Token = tuple[int, int]

_MODES = {
    weights_pb2.UPDATE_MODE_DRAIN: UpdateMode.DRAIN,
    weights_pb2.UPDATE_MODE_ABORT: UpdateMode.ABORT,
    weights_pb2.UPDATE_MODE_KEEP: UpdateMode.KEEP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOrder:
    """An update as the scheduler asks for it.

    Attributes:
        update: Its own token.
        rollout: The token of the rollout that it is for.
        prompt: Of the canary; empty takes the usual one.
        expected: The trainer's own answer to it; None if it is not known.
        reference: That of the first engine that was proved; None if there was none.
        unchanged: Whether the weights are those of before.
        timeout_s: The longest wait for a drain and for the update, each.
    """

    update: Token
    rollout: Token
    version: int
    source: WeightSource
    mode: UpdateMode
    prompt: tuple[int, ...] = ()
    expected: CanaryAnswer | None = None
    reference: CanaryAnswer | None = None
    unchanged: bool = False
    timeout_s: float = 600.0


def token_of(token: manager_service_pb2.FencingToken) -> Token:
    """Returns a token as a tuple, which orders as tokens do."""
    return token.epoch, token.sequence


@asynccontextmanager
async def order_of(
    update: manager_service_pb2.UpdateWeights, payloads: PayloadAccess, places: WeightPlaces | None = None
) -> AsyncIterator[UpdateOrder]:
    """Gives the order of an update. Tensors are in a file meanwhile.

    Args:
        update: The update.
        payloads: Where tensors are read from.
        places: Where all else may lie; None for anywhere.

    Raises:
        WeightUpdateError: They lie elsewhere.
        PayloadError: They could not be read.
        OSError: They could not be written.
    """
    plan = update.plan
    if plan.source.WhichOneof("source") != "tensors":
        source = _source(update)
        if places is not None:
            source = await anyio.to_thread.run_sync(places.bound, source, abandon_on_cancel=True)
        yield _order(update, source)
        return
    content = await payloads.read(plan.source.tensors)
    with tempfile.TemporaryDirectory(prefix="callsheet-weights-") as directory:
        path = Path(directory) / "weights.safetensors"
        await anyio.to_thread.run_sync(path.write_bytes, content)
        yield _order(update, TensorWeights(path))


def _source(update: manager_service_pb2.UpdateWeights) -> WeightSource:
    source = update.plan.source
    if source.WhichOneof("source") == "location":
        return DiskWeights(source.location)
    if source.WhichOneof("source") == "first":
        return FirstWeights()
    group = source.group
    return GroupWeights(
        address=group.address,
        port=group.port,
        group_name=group.group_name,
        world_size=group.world_size,
        rank=update.rank,
        backend=group.backend,
        tensors=tuple(TensorSpec(each.name, each.dtype, tuple(each.shape)) for each in group.tensors),
    )


def _order(update: manager_service_pb2.UpdateWeights, source: WeightSource) -> UpdateOrder:
    canary = update.plan.canary
    return UpdateOrder(
        update=token_of(update.update),
        rollout=token_of(update.rollout),
        version=update.version,
        source=source,
        mode=_MODES[update.plan.mode],
        prompt=tuple(canary.prompt_token_ids),
        expected=_answer(canary.expected),
        reference=_answer(update.reference),
        unchanged=canary.unchanged,
        timeout_s=update.plan.timeout.ToTimedelta().total_seconds(),
    )


def _answer(message: weights_pb2.CanaryAnswer) -> CanaryAnswer | None:
    return CanaryAnswer.of(message.token_ids, message.log_probs) if message.token_ids else None
