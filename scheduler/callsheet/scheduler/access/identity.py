"""Who a caller is, what it may touch, and what each method of the contract takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from callsheet.scheduler.core.words.model import RefusalCode, RefusedError
from callsheet.v1 import admin_service_pb2, client_service_pb2, manager_service_pb2, payload_service_pb2
from grpc_health.v1 import health_pb2


class Scope(Enum):
    """What a token lets its bearer do.

    ADMIN: everything. READ_ONLY: look at everything, change nothing. JOB: all that concerns one job. MANAGER: be one
    manager, and store and read the payloads of its attempts. GATEWAY: generate in trajectories of all jobs, and
    see which there are.
    """

    ADMIN = "admin"
    READ_ONLY = "read-only"
    JOB = "job"
    MANAGER = "manager"
    GATEWAY = "gateway"


OF_ONE_SUBJECT = frozenset({Scope.JOB, Scope.MANAGER})
"""Scopes whose tokens name the one job or manager that they are for."""
PART_SIGN = "#"
"""Between a manager's id and the number of one of several that its process is: "gpu-7#0", "gpu-7#1"."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller.

    Attributes:
        scope: What it may do.
        subject: The id of the one job or manager it is; empty for the others.
        token_id: The public part of its token; empty where the scheduler asks for none.
        publishes: Of a job, the services that its token names.
    """

    scope: Scope
    subject: str = ""
    token_id: str = ""
    publishes: frozenset[str] = frozenset()

    def require(self, scopes: frozenset[Scope], method: str) -> None:
        """Checks that it may call a method at all.

        Raises:
            RefusedError: PERMISSION_DENIED naming the scopes that may.
        """
        if self.scope is not Scope.ADMIN and self.scope not in scopes:
            allowed = ", ".join(sorted({scope.value for scope in (*scopes, Scope.ADMIN)}))
            raise denied("method", method, f"takes a token of scope {allowed}; this one has scope {self.scope.value}")

    def require_job(self, field: str, job_id: str) -> None:
        """Checks that it may touch a job.

        Raises:
            RefusedError: PERMISSION_DENIED naming the job.
        """
        self._require_subject(Scope.JOB, field, job_id)

    def require_manager(self, field: str, manager_id: str) -> None:
        """Checks that it may be a manager: the one its token names, or a part of it.

        Raises:
            RefusedError: PERMISSION_DENIED naming the manager.
        """
        if not is_part_of(manager_id, self.subject):
            self._require_subject(Scope.MANAGER, field, manager_id)

    def sees_job(self, job_id: str) -> bool:
        """Whether a job may be shown to it."""
        return self.scope is not Scope.JOB or self.subject == job_id

    def _require_subject(self, scope: Scope, field: str, subject: str) -> None:
        if self.scope is scope and self.subject != subject:
            raise denied(field, subject, f"must be {self.subject!r}: this token is for that {scope.value} alone")


def is_part_of(manager_id: str, subject: str) -> bool:
    """Whether a manager is the one that a token names, or one of several that are one process under that name."""
    name, sign, number = manager_id.rpartition(PART_SIGN)
    return manager_id == subject or (bool(sign) and name == subject and number.isascii() and number.isdigit())


ANYBODY = Identity(Scope.ADMIN)
"""Every caller of a scheduler that asks for no tokens."""


def denied(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of what a known caller may not do."""
    return RefusedError(RefusalCode.PERMISSION_DENIED, field, value, rule)


def unauthenticated(rule: str) -> RefusedError:
    """The refusal of a caller that is not known. It repeats nothing of what was presented."""
    return RefusedError(RefusalCode.UNAUTHENTICATED, "authorization", "", rule)


# What each method of the contract takes. A method that is not here is for administrators.

_JOB: Final = frozenset({Scope.JOB})
_WORKING: Final = frozenset({Scope.JOB, Scope.GATEWAY})
_LOOKING: Final = frozenset({Scope.JOB, Scope.READ_ONLY})
_LISTING: Final = frozenset({Scope.JOB, Scope.READ_ONLY, Scope.GATEWAY})
_ALL: Final = frozenset(Scope)
_NOBODY_ELSE: Final[frozenset[Scope]] = frozenset()

_CLIENT: Final = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
_ADMIN: Final = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
_MANAGER: Final = manager_service_pb2.DESCRIPTOR.services_by_name["ManagerService"]
_PAYLOAD: Final = payload_service_pb2.DESCRIPTOR.services_by_name["PayloadService"]
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]


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
    # On its session a gateway may submit generates, cancel and open trajectories: `service.requests` looks.
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
