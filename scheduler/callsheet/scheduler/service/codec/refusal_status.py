"""Refusals as gRPC statuses with one typed detail."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.service.codec.durations import to_duration
from callsheet.v1 import common_pb2
from callsheet.v1.google_rpc import status_pb2
from google.protobuf import any_pb2

E = TypeVar("E", bound=BaseException)
Context = grpc.aio.ServicerContext[Any, Any]
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


def to_status(refusal: RefusedError) -> status_pb2.Status:
    """Returns a google.rpc.Status with one ErrorDetail."""
    detail = common_pb2.ErrorDetail(
        field=refusal.field, value=refusal.value, rule=refusal.rule, forgotten=refusal.forgotten
    )
    if refusal.retry_after is not None:
        detail.retry_delay.CopyFrom(to_duration(refusal.retry_after))
    packed = any_pb2.Any()
    packed.Pack(detail)
    return status_pb2.Status(code=int(refusal.code), message=str(refusal), details=[packed])


async def abort(context: Context, refusal: RefusedError) -> NoReturn:
    """Ends an rpc with the refusal; its details are in the standard trailer."""
    status = to_status(refusal)
    trailer = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(_STATUS_CODES[int(refusal.code)], str(refusal), trailing_metadata=trailer)
    raise AssertionError("abort always raises")


def first_of(group: BaseExceptionGroup[E]) -> E:
    """Returns the first exception of a group and of the groups in it."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
