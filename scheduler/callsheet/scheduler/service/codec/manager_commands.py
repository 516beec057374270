"""From the core's commands to the items of a manager's stream, encoded."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from callsheet.scheduler.core.hosted.rollouts import RESTORE_TIMEOUT_S
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.plan import GrantPrediction
from callsheet.scheduler.service.codec.decode import encode_traceparent
from callsheet.scheduler.service.codec.durations import fill_duration
from callsheet.v1 import manager_service_pb2, weights_pb2
from callsheet.wire.encoded_fields import embedded, tag

_DISPATCH: Final = tag(manager_service_pb2.SchedulerItem.DISPATCH_FIELD_NUMBER)
_GRANT: Final = tag(manager_service_pb2.Dispatch.GRANT_FIELD_NUMBER)
_ACTION: Final = tag(manager_service_pb2.Dispatch.ACTION_FIELD_NUMBER)


def encode_command(command: commands.ManagerCommand) -> bytes:
    """Returns the SchedulerItem that carries a command."""
    if type(command) is commands.Dispatch:
        return _encode_dispatch(command)
    item = manager_service_pb2.SchedulerItem()
    match command:
        case commands.ResizeAttempt():
            _fill_token(item.resize.token, command.token)
            item.resize.cores.extend(command.cores)
            item.resize.resources.update(command.resources)
        case commands.CancelAttempt():
            _fill_token(item.cancel.token, command.token)
            item.cancel.reason = command.reason
        case commands.ReleaseSandbox(sandbox=ref):
            sandbox = item.release_sandbox.sandbox
            sandbox.job_id, sandbox.trajectory_id, sandbox.sandbox_id = ref.job_id, ref.trajectory_id, ref.sandbox_id
        case commands.DrainManager():
            item.drain.SetInParent()
        case commands.UpdateWeights():
            _fill_update(item.update_weights, command)
        case commands.TellDemand():
            demand = item.service_demand
            demand.service, demand.waiting, demand.coming = command.service, command.waiting, command.coming
        case _:
            raise TypeError(f"{command!r} is no item of a manager's stream")
    return item.SerializeToString()


def _fill_token(message: manager_service_pb2.FencingToken, token: Token) -> None:
    message.epoch, message.sequence = token


def _fill_update(message: manager_service_pb2.UpdateWeights, command: commands.UpdateWeights) -> None:
    _fill_token(message.update, command.update)
    _fill_token(message.rollout, command.rollout)
    message.service, message.version, message.rank = command.service, command.version, command.rank
    if command.plan:
        message.plan.ParseFromString(command.plan)
    else:
        message.plan.source.first.SetInParent()
        message.plan.mode = weights_pb2.UPDATE_MODE_ABORT
        fill_duration(message.plan.timeout, RESTORE_TIMEOUT_S)
    if command.reference:
        message.reference.ParseFromString(command.reference)


def _encode_dispatch(command: commands.Dispatch) -> bytes:
    request = command.request
    grant = manager_service_pb2.Grant(body_hash=request.body_hash)
    _fill_token(grant.token, command.token)
    key = grant.key
    key.job_id, key.action_id = request.key
    # Every part of a message that is looked at costs an object: an action that asks for nothing has none of these.
    if command.sandbox_id:
        grant.sandbox_id = command.sandbox_id
    if command.cores:
        grant.cores.extend(command.cores)
    if command.resources:
        grant.resources.update(command.resources)
    timeouts = (command.start_to_close, request.timeouts.heartbeat)
    terms = _encode_terms(command.service, command.attempt, timeouts, command.prediction)
    spec = request.spec.removesuffix(encode_traceparent(request.traceparent))
    dispatch = embedded(_GRANT, terms + grant.SerializeToString()) + embedded(_ACTION, spec)
    return embedded(_DISPATCH, dispatch)


@lru_cache(maxsize=1024)
def _encode_terms(
    service: str, attempt: int, timeouts: tuple[float, float], prediction: GrantPrediction | None
) -> bytes:
    """Returns the part of a Grant that many dispatches share; `timeouts` are start_to_close and heartbeat or 0."""
    grant = manager_service_pb2.Grant(service=service, attempt=attempt)
    start_to_close, heartbeat = timeouts
    fill_duration(grant.start_to_close, start_to_close)
    if heartbeat:
        fill_duration(grant.heartbeat, heartbeat)
    if prediction is not None:
        grant.expected_use, grant.expected_execution_s = prediction.use, prediction.execution_s
    return grant.SerializeToString()
