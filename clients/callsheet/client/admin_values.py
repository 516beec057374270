"""Values for operators: the scheduler's status, and the story of an action. Times are Unix seconds."""

from __future__ import annotations

from callsheet.v1.admin_service_values import (
    ActionState,
    ClosedJob,
    DrainReport,
    Explanation,
    Holder,
    LostManager,
    ManagerStatus,
    NodeStatus,
    OpenActions,
    SchedulerStatus,
    Shortage,
    StoryEvent,
    WaitReason,
    WantedUnits,
)
from callsheet.v1.manager_service_values import EngineWeights, SandboxOwner, ServiceStatus
from callsheet.v1.weights_values import WeightsStanding

__all__ = [
    "ActionState",
    "ClosedJob",
    "DrainReport",
    "EngineWeights",
    "Explanation",
    "Holder",
    "LostManager",
    "ManagerStatus",
    "NodeStatus",
    "OpenActions",
    "SandboxOwner",
    "SchedulerStatus",
    "ServiceStatus",
    "Shortage",
    "StoryEvent",
    "WaitReason",
    "WantedUnits",
    "WeightsStanding",
]
