"""From the messages of the admin service to the client's values."""

from __future__ import annotations

from callsheet.client.admin_predictions import ClassOutlook, ExpectedRun, Outlook, SharedCores, WhatIf
from callsheet.client.admin_values import (
    ActionState,
    ClosedJob,
    DrainReport,
    EngineWeights,
    Explanation,
    Holder,
    LostManager,
    ManagerStatus,
    NodeStatus,
    SandboxOwner,
    SchedulerStatus,
    ServiceStatus,
    Shortage,
    StoryEvent,
    WaitReason,
    WantedUnits,
    WeightsStanding,
)
from callsheet.client.codec.fields import by_number, decode_cost, in_seconds, take
from callsheet.client.codec.jobs import decode_job_status
from callsheet.client.words.actions import ActionKind
from callsheet.v1 import action_pb2, admin_service_pb2, manager_service_pb2, weights_pb2

_KIND = by_number(ActionKind, "ACTION_KIND_", action_pb2.ActionKind)
_STATE = by_number(ActionState, "ACTION_STATE_", admin_service_pb2.ActionState)
_WAIT_REASON = by_number(WaitReason, "WAIT_REASON_", admin_service_pb2.WaitReason)
_STANDING = by_number(WeightsStanding, "WEIGHTS_STANDING_", weights_pb2.WeightsStanding)


def decode_status(message: admin_service_pb2.GetStatusResponse) -> SchedulerStatus:
    """Returns the status of a scheduler."""
    return SchedulerStatus(
        message.epoch,
        in_seconds(message.started),
        tuple(map(decode_job_status, message.jobs)),
        tuple(map(_manager, message.managers)),
        tuple(take(NodeStatus, node) for node in message.nodes),
        tuple(take(LostManager, each, lost_at=in_seconds(each.time)) for each in message.lost),
        tuple(take(WantedUnits, each) for each in message.wanted),
    )


def _manager(message: admin_service_pb2.ManagerStatus) -> ManagerStatus:
    leaves_by = in_seconds(message.leaves_by) if message.HasField("leaves_by") else None
    return take(ManagerStatus, message, services=tuple(map(_service, message.services)), leaves_by=leaves_by)


def decode_drain(message: admin_service_pb2.DrainManagerResponse) -> DrainReport:
    """Returns what would die with a manager."""
    return take(DrainReport, message, sandboxes=tuple(take(SandboxOwner, each) for each in message.sandboxes))


def decode_explanation(message: admin_service_pb2.ExplainResponse) -> Explanation:
    """Returns the explanation of an action."""
    return take(
        Explanation,
        message,
        job_id=message.key.job_id,
        action_id=message.key.action_id,
        kind=_KIND.get(message.kind),
        state=_STATE.get(message.state, ActionState.UNSPECIFIED),
        wait_reason=_WAIT_REASON.get(message.wait_reason, WaitReason.UNSPECIFIED),
        shortages=tuple(take(Shortage, each) for each in message.shortages),
        story=tuple(StoryEvent(in_seconds(event.time), event.event) for event in message.story),
        expected=take(ExpectedRun, message.expected) if message.HasField("expected") else None,
        holders=tuple(take(Holder, each) for each in message.holders),
    )


def decode_closed_job(message: admin_service_pb2.ClosedJob) -> ClosedJob:
    """Returns a closed job."""
    times = {"opened": in_seconds(message.opened), "closed": in_seconds(message.closed)}
    return take(ClosedJob, message, **times, cost=decode_cost(message.cost))


def decode_what_if(message: admin_service_pb2.WhatIfResponse) -> WhatIf:
    """Returns what more nodes would do."""
    return take(WhatIf, message, before=_outlook(message.before), after=_outlook(message.after))


def _outlook(message: admin_service_pb2.Outlook) -> Outlook:
    classes = tuple(take(ClassOutlook, each) for each in message.classes)
    return take(Outlook, message, classes=classes, shared=take(SharedCores, message.shared))


def _service(message: manager_service_pb2.HostedService) -> ServiceStatus:
    kinds = tuple(_KIND[kind] for kind in message.kinds if kind in _KIND)
    weights = _weights(message.weights) if message.HasField("weights") else None
    return take(ServiceStatus, message, kinds=kinds, slots=message.slots or None, weights=weights)


def _weights(message: manager_service_pb2.EngineWeights) -> EngineWeights:
    standing = _STANDING.get(message.standing, WeightsStanding.UNSPECIFIED)
    return take(EngineWeights, message, standing=standing)
