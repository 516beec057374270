"""Errors as E2B's clients get them: a code of the Connect protocol, a message, and for REST a status."""

from __future__ import annotations

from enum import Enum
from typing import Any

from callsheet.client import (
    CallsheetError,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    InvalidArgumentError,
    PayloadError,
    QueueFullError,
    RefusedError,
)
from callsheet.integrations.sandboxes.remote import FacadeError, FaultWords, NoResult


class ConnectCode(Enum):
    """The codes of the Connect protocol that this server uses, with the HTTP status of each."""

    INVALID_ARGUMENT = ("invalid_argument", 400)
    UNAUTHENTICATED = ("unauthenticated", 401)
    NOT_FOUND = ("not_found", 404)
    ALREADY_EXISTS = ("already_exists", 409)
    RESOURCE_EXHAUSTED = ("resource_exhausted", 429)
    CANCELED = ("canceled", 499)
    INTERNAL = ("internal", 500)
    UNIMPLEMENTED = ("unimplemented", 501)
    UNAVAILABLE = ("unavailable", 502)
    DEADLINE_EXCEEDED = ("deadline_exceeded", 504)

    def __init__(self, word: str, status: int) -> None:
        self.word = word
        self.status = status


class E2bError(FacadeError):
    """An error for a client.

    Attributes:
        code: Of the Connect protocol.
        status: Of HTTP, where the request is not an rpc.
    """

    def __init__(
        self, code: ConnectCode, message: str, *, status: int | None = None, ends_sandbox: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = code.status if status is None else status
        self.ends_sandbox = ends_sandbox

    def rest_body(self) -> dict[str, Any]:
        """The body of a response of the REST API, or of a sandbox's files."""
        return {"code": self.status, "message": str(self)}

    def connect_body(self) -> dict[str, Any]:
        """The body of an rpc's response, or the error at the end of its stream."""
        return {"code": self.code.word, "message": str(self)}


def invalid(field: str, value: object, rule: str) -> E2bError:
    """A request that cannot be carried out, with field, value and rule."""
    return E2bError(ConnectCode.INVALID_ARGUMENT, f"{field}: {str(value)[:200]!r}: {rule}")


def unsupported(what: str) -> E2bError:
    """A part of E2B's API that this facade does not have."""
    return E2bError(ConnectCode.UNIMPLEMENTED, f"{what}: not supported by Callsheet's facade, see docs/how-to/e2b.md")


def not_found(what: str) -> E2bError:
    """Something that is named is not there."""
    return E2bError(ConnectCode.NOT_FOUND, f"{what} was not found")


def gone(sandbox_id: str, why: str = "") -> E2bError:
    """A sandbox that has ended. E2B's clients know it by the words "was not found"."""
    reason = f" ({why})" if why else ""
    return E2bError(ConnectCode.UNAVAILABLE, f"sandbox {sandbox_id} was not found{reason}", ends_sandbox=True)


class E2bWords(FaultWords):
    """Faults of one sandbox as E2B's clients get them."""

    def __init__(self, sandbox_id: str) -> None:
        """Args: sandbox_id: The sandbox."""
        self._sandbox_id = sandbox_id

    def refused(self, error: CallsheetError) -> E2bError:
        """See `FaultWords`."""
        if isinstance(error, InvalidArgumentError):
            return E2bError(ConnectCode.INVALID_ARGUMENT, str(error))
        if isinstance(error, QueueFullError):
            return E2bError(ConnectCode.RESOURCE_EXHAUSTED, str(error))
        # Job or trajectory were closed by others.
        if isinstance(error, RefusedError) and error.field in {"job_id", "trajectory_id"}:
            return gone(self._sandbox_id, str(error))
        if isinstance(error, FailedPreconditionError):
            return E2bError(ConnectCode.INVALID_ARGUMENT, str(error))
        return E2bError(ConnectCode.INTERNAL, f"{type(error).__name__}: {error}")

    def payload_lost(self, error: PayloadError) -> E2bError:
        """See `FaultWords`."""
        return E2bError(ConnectCode.INTERNAL, f"payload_lost: {error}")

    def no_result(self, outcome: NoResult) -> E2bError:
        """See `FaultWords`."""
        about = f"(action {outcome.action_id})"
        if isinstance(outcome, Expired):
            return E2bError(ConnectCode.DEADLINE_EXCEEDED, f"EXPIRED {outcome.timeout.value} {about}")
        if not isinstance(outcome, Failed):
            return gone(self._sandbox_id, f"CANCELLED {outcome.reason} {about}")
        message = f"{outcome.kind.name} {outcome.reason.value}: {outcome.message} {about}"
        if outcome.reason.value == "state_lost":
            return gone(self._sandbox_id, message)
        return E2bError(_CODES.get(outcome.kind, ConnectCode.INTERNAL), message)

    def closed(self) -> E2bError:
        """See `FaultWords`."""
        return gone(self._sandbox_id, "it was closed while it began")


_CODES = {
    FailureKind.ENV: ConnectCode.INVALID_ARGUMENT,
    FailureKind.POLICY: ConnectCode.INVALID_ARGUMENT,
    FailureKind.TIMEOUT: ConnectCode.DEADLINE_EXCEEDED,
    FailureKind.RESOURCE_LIMIT: ConnectCode.RESOURCE_EXHAUSTED,
}
