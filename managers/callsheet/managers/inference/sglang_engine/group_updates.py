"""New weights for SGLang from a group of processes, in buckets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import structlog
from callsheet.managers.inference.driver import (
    EngineError,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.client import (
    EngineHttp,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.replies import label_of
from callsheet.managers.inference.weights import GroupWeights, TensorSpec

BUCKET_BYTES = 1 << 30
"""The most that a server is to receive before it loads it: it needs that much memory beside the model."""
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int8": 1, "uint8": 1}
END_TIMEOUT_S = 60.0
log = structlog.get_logger(__name__)


async def update_from_group(
    http: EngineHttp, source: GroupWeights, update: WeightUpdate, *, joined: set[str], flush: bool
) -> None:
    """Joins the group unless the server is in it, and takes all tensors in the order of the trainer's broadcasts.

    Args:
        http: Calls to the server.
        source: The group and what comes through it.
        update: The update.
        joined: Names of groups that the server is in; this one is added.
        flush: Whether the server is to forget its KV at the end; it must have no requests then.

    Raises:
        WeightUpdateError: A step failed.
        EngineUnreachableError: The server does not answer in time: a member of the group may be missing.
    """
    if source.group_name not in joined:
        await _join(http, source, update)
        joined.add(source.group_name)
    begun = await http.post("/begin_weight_update", {"selector": "all"}, timeout_s=update.timeout_s)
    sessions = begun.status != 404  # Older servers have none.
    if sessions and not _succeeded(begun):
        raise WeightUpdateError(f"begin: {begun.message}", intact=True)
    try:
        await _receive(http, source, update, flush=flush)
    except EngineError:
        # Who failed in the middle of it is no reliable member any longer.
        joined.discard(source.group_name)
        raise
    finally:
        if sessions:
            ended = await http.post("/end_weight_update", {}, timeout_s=END_TIMEOUT_S)
            if not _succeeded(ended):
                log.warning("weight update did not end", reason=ended.message)
    if sessions and not _succeeded(ended):
        raise WeightUpdateError(f"end: {ended.message}")


async def _join(http: EngineHttp, source: GroupWeights, update: WeightUpdate) -> None:
    body = {
        "master_address": source.address,
        "master_port": source.port,
        "rank_offset": source.rank,
        "world_size": source.world_size,
        "group_name": source.group_name,
        "backend": source.backend,
    }
    answer = await http.post("/init_weights_update_group", body, timeout_s=update.timeout_s)
    if not _succeeded(answer):
        raise WeightUpdateError(f"group {source.group_name!r}: {answer.message}", intact=True)


async def _receive(http: EngineHttp, source: GroupWeights, update: WeightUpdate, *, flush: bool) -> None:
    buckets = list(buckets_of(source.tensors))
    for number, bucket in enumerate(buckets, 1):
        last = number == len(buckets)
        body = {
            "names": [tensor.name for tensor in bucket],
            "dtypes": [tensor.dtype for tensor in bucket],
            "shapes": [list(tensor.shape) for tensor in bucket],
            "group_name": source.group_name,
            "flush_cache": flush and last,
            "abort_all_requests": False,
        }
        if last:
            # Before the last tensor the weights are of no version.
            body["weight_version"] = label_of(update.version)
        answer = await http.post("/update_weights_from_distributed", body, timeout_s=update.timeout_s)
        if not _succeeded(answer):
            raise WeightUpdateError(f"bucket {number} of {len(buckets)}: {answer.message}")


def buckets_of(tensors: Sequence[TensorSpec], most_bytes: int = BUCKET_BYTES) -> Iterator[list[TensorSpec]]:
    """Splits tensors into runs of at most so many bytes, in their order; a larger one is a run of its own."""
    bucket: list[TensorSpec] = []
    size = 0
    for tensor in tensors:
        own = math.prod(tensor.shape) * _BYTES.get(tensor.dtype, 2)
        if bucket and size + own > most_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += own
    if bucket:
        yield bucket


def _succeeded(answer: HttpAnswer) -> bool:
    return answer.ok and answer.field("success") is not False
