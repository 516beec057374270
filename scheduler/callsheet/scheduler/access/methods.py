"""What each method of the contract takes. A method that is not here is for administrators."""

from __future__ import annotations

from typing import Any, Final

from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import admin_service_pb2, client_service_pb2, manager_service_pb2, payload_service_pb2
from grpc_health.v1 import health_pb2

_JOB: Final = frozenset({Scope.JOB})
_LOOKING: Final = frozenset({Scope.JOB, Scope.READ_ONLY})
_ALL: Final = frozenset(Scope)

_CLIENT: Final = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
_ADMIN: Final = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
_MANAGER: Final = manager_service_pb2.DESCRIPTOR.services_by_name["ManagerService"]
_PAYLOAD: Final = payload_service_pb2.DESCRIPTOR.services_by_name["PayloadService"]
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]


def _methods(service: Any, *names: str) -> list[str]:
    """Full names of methods of a service; of all of them unless some are named."""
    return [f"/{service.full_name}/{name}" for name in names or [method.name for method in service.methods]]


OPEN_TO_ALL: Final = frozenset(_methods(_HEALTH))
"""Methods that take no token: what watches over processes has none."""

SCOPES: Final = {
    **dict.fromkeys(_methods(_CLIENT), _JOB),
    **dict.fromkeys(_methods(_CLIENT, "GetOutcome", "ListJobs", "ListTrajectories", "ListGroups"), _LOOKING),
    **dict.fromkeys(_methods(_CLIENT, "GetServerInfo"), _ALL),
    **dict.fromkeys(_methods(_ADMIN, "GetStatus", "WhatIf", "GetPredictionErrors"), frozenset({Scope.READ_ONLY})),
    **dict.fromkeys(_methods(_ADMIN, "ResizeAction", "PauseAction", "ResumeAction"), _JOB),
    **dict.fromkeys(_methods(_ADMIN, "Explain"), _LOOKING),
    **dict.fromkeys(_methods(_MANAGER), frozenset({Scope.MANAGER})),
    **dict.fromkeys(_methods(_PAYLOAD), frozenset({Scope.JOB, Scope.MANAGER})),
}
"""The scopes that may call a method, by its full name; an administrator may call all."""
