"""From the contract's messages about finished trajectories and batches to the core's, checking every rule."""

from __future__ import annotations

import math
from typing import Final

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import TrajectoryEnd, TrajectoryResult
from callsheet.scheduler.core.words.peers import BatchTaker
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.service.payloads.claims import References
from callsheet.v1 import buffer_pb2, client_service_pb2
from callsheet.v1.names import MAX_BATCH, MAX_INLINE_RESULT
from callsheet.v1.rules.fields import blob, identifier, known, longer_than_zero, within

MAX_LEASE: Final = 24 * 3600.0
DEFAULT_LEASE: Final = 600.0
_SETTLEMENTS: Final = {
    client_service_pb2.SETTLEMENT_UNSPECIFIED: events.Settlement.ACKNOWLEDGE,
    client_service_pb2.SETTLEMENT_ACKNOWLEDGE: events.Settlement.ACKNOWLEDGE,
    client_service_pb2.SETTLEMENT_GIVE_BACK: events.Settlement.GIVE_BACK,
    client_service_pb2.SETTLEMENT_EXTEND: events.Settlement.EXTEND,
}


def decode_result(message: buffer_pb2.TrajectoryResult) -> tuple[TrajectoryResult, References]:
    """Returns a validated result, and the stored payload that it refers to.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    if not math.isfinite(message.reward):
        raise invalid("result.reward", message.reward, "must be a finite number")
    references: References = []
    if message.HasField("payload"):
        references = blob("result.payload", message.payload)
        size = len(message.payload.inline)
        if size > MAX_INLINE_RESULT:
            rule = f"must have at most {MAX_INLINE_RESULT} bytes; put it first"
            raise invalid("result.payload.inline", f"{size} bytes", rule)
    payloads = tuple(each.sha256 for each in references)
    encoded = message.SerializeToString(deterministic=True)
    return TrajectoryResult(encoded, payloads, message.reward), references


def decode_result_of(
    message: client_service_pb2.CloseTrajectoryRequest, end: TrajectoryEnd
) -> tuple[TrajectoryResult | None, References]:
    """Returns the result that a trajectory is closed with, if it has one.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    if not message.HasField("result"):
        return None, []
    if end is not TrajectoryEnd.COMPLETED:
        raise invalid("result", "", f"must be unset for a trajectory that ends as {end.value}")
    return decode_result(message.result)


def decode_take(
    message: client_service_pb2.TakeBatchRequest, reply_to: events.ReplyTo, taker: BatchTaker
) -> events.BatchRequested:
    """Returns a validated request for a batch.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    lease = DEFAULT_LEASE
    if message.HasField("lease"):
        lease = within("lease", longer_than_zero("lease", message.lease), 0.0, MAX_LEASE)
    at_least, at_most = message.at_least or 1, int(within("at_most", message.at_most or MAX_BATCH, 1, MAX_BATCH))
    if not 1 <= at_least <= at_most:
        raise invalid("at_least", at_least, f"must be between 1 and at_most, {at_most}")
    return events.BatchRequested(
        reply_to,
        identifier("job_id", message.job_id),
        identifier("batch_id", message.batch_id),
        at_least,
        at_most,
        lease,
        taker,
    )


def decode_settlement(message: client_service_pb2.SettleBatchRequest, reply_to: events.ReplyTo) -> events.BatchSettled:
    """Returns the settlement that a trainer asks for its batch.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    wanted = known("settlement", message.settlement, _SETTLEMENTS)
    settlement = _SETTLEMENTS[client_service_pb2.Settlement.ValueType(wanted)]
    return events.BatchSettled(
        reply_to,
        identifier("job_id", message.job_id),
        identifier("batch_id", message.batch_id),
        settlement,
    )
