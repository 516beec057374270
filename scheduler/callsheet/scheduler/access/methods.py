"""The scope that each method of the contract requires. A method that is not here is for administrators."""

from __future__ import annotations

from typing import Any, Final

from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import admin_service_pb2, client_service_pb2, manager_service_pb2, payload_service_pb2
from grpc_health.v1 import health_pb2

_CLIENT: Final = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
_ADMIN: Final = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
_MANAGER: Final = manager_service_pb2.DESCRIPTOR.services_by_name["ManagerService"]
_PAYLOAD: Final = payload_service_pb2.DESCRIPTOR.services_by_name["PayloadService"]
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]
_JOB: Final = frozenset({Scope.JOB})
_WORKING: Final = frozenset({Scope.JOB, Scope.GATEWAY})
_LOOKING: Final = frozenset({Scope.JOB, Scope.READ_ONLY})
_LISTING: Final = frozenset({Scope.JOB, Scope.READ_ONLY, Scope.GATEWAY})
_ALL: Final = frozenset(Scope)
_NOBODY_ELSE: Final[frozenset[Scope]] = frozenset()


def _methods(service: Any, *names: str) -> list[str]:
    """Full names of methods of a service."""
    return [f"/{service.full_name}/{name}" for name in names]


OPEN_TO_ALL: Final = frozenset(_methods(_HEALTH, *(method.name for method in _HEALTH.methods)))
"""Methods that take no token: what watches over processes has none."""

_OF_A_JOB: Final = _methods(
    _CLIENT,
    "OpenJob",
    "CloseJob",
    "CloseTrajectory",
    "SubmitAction",
    "CancelAction",
    "CancelWork",
    "PublishPolicyVersion",
    "TakeBatch",
    "SettleBatch",
)

# Each one by its name: a new method is for administrators until somebody has thought about it.
SCOPES: Final = {
    **dict.fromkeys(_OF_A_JOB, _JOB),
    # On its session a gateway may submit generates, cancel and open trajectories: `codec.requests` checks that.
    **dict.fromkeys(_methods(_CLIENT, "ClientSession", "OpenTrajectory"), _WORKING),
    **dict.fromkeys(_methods(_CLIENT, "GetOutcome", "ListGroups", "ListBuffer"), _LOOKING),
    **dict.fromkeys(_methods(_CLIENT, "ListJobs", "ListTrajectories"), _LISTING),
    **dict.fromkeys(_methods(_CLIENT, "GetServerInfo"), _ALL),
    **dict.fromkeys(_methods(_ADMIN, "GetStatus"), frozenset({Scope.READ_ONLY, Scope.GATEWAY})),
    **dict.fromkeys(_methods(_ADMIN, "WhatIf"), frozenset({Scope.READ_ONLY})),
    **dict.fromkeys(_methods(_ADMIN, "Explain", "ListActions"), _LOOKING),
    **dict.fromkeys(_methods(_ADMIN, "ListTrajectoryHistory", "ListActionHistory", "ListClosedJobs"), _LOOKING),
    **dict.fromkeys(_methods(_ADMIN, "DrainManager", "HealManager"), _NOBODY_ELSE),
    **dict.fromkeys(_methods(_MANAGER, "ManagerSession"), frozenset({Scope.MANAGER})),
    **dict.fromkeys(_methods(_PAYLOAD, "PutPayload", "GetPayload"), frozenset({Scope.JOB, Scope.MANAGER})),
}
"""The scopes that may call a method, by its full name; an administrator may call all."""
