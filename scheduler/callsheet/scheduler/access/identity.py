"""Identities of callers, and the things that each may touch. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

PART_SIGN = "#"
"""Between a manager's id and the number of one of several that its process is: "gpu-7#0", "gpu-7#1"."""


class Scope(Enum):
    """Scopes of tokens, each with the rights of its bearer.

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
        """Returns whether a job may be shown to it."""
        return self.scope is not Scope.JOB or self.subject == job_id

    def _require_subject(self, scope: Scope, field: str, subject: str) -> None:
        if self.scope is scope and self.subject != subject:
            raise denied(field, subject, f"must be {self.subject!r}: this token is for that {scope.value} alone")


def is_part_of(manager_id: str, subject: str) -> bool:
    """Returns whether a token names a manager, or the one process that has several managers under that name."""
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
