"""From the messages of the admin service to the client's values."""

from __future__ import annotations

from callsheet.client.actions import ActionKind
from callsheet.client.admin_predictions import (
    ClassOutlook,
    ExpectedRun,
    Outlook,
    PredictionErrors,
    SharedCores,
    WhatIf,
)
from callsheet.client.admin_values import (
    ActionState,
    Explanation,
    Holder,
    ManagerStatus,
    NodeStatus,
    SchedulerStatus,
    ServiceStatus,
    Shortage,
    StoryEvent,
    WaitReason,
)
from callsheet.client.decode import by_number, unix_seconds
from callsheet.client.decode_jobs import decode_job_status
from callsheet.v1 import action_pb2, admin_service_pb2, manager_service_pb2

_KIND = by_number(ActionKind, "ACTION_KIND_", action_pb2.ActionKind)
_STATE = by_number(ActionState, "ACTION_STATE_", admin_service_pb2.ActionState)
_WAIT_REASON = by_number(WaitReason, "WAIT_REASON_", admin_service_pb2.WaitReason)


def decode_status(message: admin_service_pb2.GetStatusResponse) -> SchedulerStatus:
    """Returns the status of a scheduler."""
    return SchedulerStatus(
        message.epoch,
        unix_seconds(message.started),
        tuple(map(decode_job_status, message.jobs)),
        tuple(map(_manager, message.managers)),
        tuple(NodeStatus(node.node_id, dict(node.capacity), dict(node.free)) for node in message.nodes),
    )


def decode_explanation(message: admin_service_pb2.ExplainResponse) -> Explanation:
    """Returns the explanation of an action."""
    return Explanation(
        message.key.job_id,
        message.key.action_id,
        _KIND.get(message.kind),
        _STATE.get(message.state, ActionState.UNSPECIFIED),
        _WAIT_REASON.get(message.wait_reason, WaitReason.UNSPECIFIED),
        message.explanation,
        tuple(Shortage(s.resource, s.needed, s.free, s.capacity, s.node_id) for s in message.shortages),
        tuple(StoryEvent(unix_seconds(event.time), event.event) for event in message.story),
        _expected(message.expected) if message.HasField("expected") else None,
        tuple(map(_holder, message.holders)),
        message.job_closed,
    )


def decode_what_if(message: admin_service_pb2.WhatIfResponse) -> WhatIf:
    """Returns what more nodes would do."""
    return WhatIf(message.pool, message.nodes, _outlook(message.before), _outlook(message.after), message.summary)


def decode_prediction_errors(message: admin_service_pb2.PredictionErrors) -> PredictionErrors:
    """Returns the prediction errors of a kind."""
    return PredictionErrors(
        _KIND.get(message.kind),
        message.observations,
        message.mean_absolute_log,
        message.mean_log,
        message.explained if message.HasField("explained") else None,
        message.peak_exceeded,
    )


def _expected(message: admin_service_pb2.ExpectedRun) -> ExpectedRun:
    return ExpectedRun(
        message.mean_s,
        message.low_s,
        message.high_s,
        message.use,
        message.peak_memory_mb,
        message.amdahl_fraction,
        message.observations,
    )


def _outlook(message: admin_service_pb2.Outlook) -> Outlook:
    shared = message.shared
    return Outlook(
        message.mean_act_s,
        tuple(map(_class, message.classes)),
        message.start_now,
        SharedCores(shared.cores, shared.running, shared.use, shared.mean_act_s),
    )


def _class(message: admin_service_pb2.ClassOutlook) -> ClassOutlook:
    return ClassOutlook(
        message.name, message.waiting, message.mean_wait_s, message.mean_end_s, message.stuck, message.waited_s
    )


def _holder(message: admin_service_pb2.Holder) -> Holder:
    return Holder(
        message.job_id,
        message.action_id,
        message.trajectory_id,
        message.node_id,
        dict(message.units),
        message.held_s,
        message.sessions,
        message.expires_in_s if message.HasField("expires_in_s") else None,
    )


def _manager(message: admin_service_pb2.ManagerStatus) -> ManagerStatus:
    return ManagerStatus(
        message.manager_id,
        message.node_id,
        message.connected,
        message.draining,
        tuple(map(_service, message.services)),
        message.attempts,
        message.sandboxes,
        dict(message.capabilities),
    )


def _service(message: manager_service_pb2.HostedService) -> ServiceStatus:
    return ServiceStatus(
        message.name,
        tuple(_KIND[kind] for kind in message.kinds if kind in _KIND),
        message.slots or None,
        dict(message.reserved),
        message.policy_version,
        dict(message.shared),
    )
