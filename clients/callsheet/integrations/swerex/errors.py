"""Errors as SWE-ReX's clients get them: the server names an exception class, and the client raises one of it."""

from __future__ import annotations

import errno
import os
from typing import Any

from callsheet.client import (
    CallsheetError,
    CommandResult,
    EnvResetResult,
    Expired,
    Failed,
    FailureKind,
    InvalidArgumentError,
    PayloadError,
    RefusedError,
)
from callsheet.integrations.sandboxes.remote import FacadeError, FaultWords, NoResult

_SWEREX = "swerex.exceptions."
# What says that the request itself cannot be carried out, or that the system would not begin it.
_BAD_REQUESTS = frozenset({"bad_archive", "bad_environment", "bad_path"})
_NOT_STARTED = frozenset({"bad_working_directory", "cannot_execute", "no_such_program"})
_OS_ERRORS = {
    errno.ENOENT: "builtins.FileNotFoundError",
    errno.EISDIR: "builtins.IsADirectoryError",
    errno.ENOTDIR: "builtins.NotADirectoryError",
    errno.EACCES: "builtins.PermissionError",
}


class TransferredError(FacadeError):
    """An error to be raised in the client.

    Attributes:
        class_path: Full name of the class to raise.
        extra_info: Becomes an attribute of the exception.
    """

    def __init__(self, class_path: str, message: str, extra_info: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.class_path = class_path
        self.extra_info = extra_info or {}

    @property
    def timed_out(self) -> bool:
        """Returns whether an action ran for longer than it may."""
        return self.extra_info.get("kind") == FailureKind.TIMEOUT.value

    def transfer(self) -> dict[str, Any]:
        """Returns the body that reports the error; the traceback is kept from the client."""
        fields = {"message": str(self), "class_path": self.class_path, "traceback": "", "extra_info": self.extra_info}
        return {"swerexception": fields}


def swerex_error(name: str, message: str, **extra_info: Any) -> TransferredError:
    """An error of a class of `swerex.exceptions`."""
    return TransferredError(_SWEREX + name, message, extra_info)


def value_error(field: str, value: object, rule: str) -> TransferredError:
    """A ValueError naming field, value and rule."""
    return TransferredError("builtins.ValueError", f"{field}: {str(value)[:200]!r}: {rule}")


def os_error(number: int, path: str) -> TransferredError:
    """Returns the system's error about a path, in Python's words."""
    class_path = _OS_ERRORS.get(number, "builtins.OSError")
    return TransferredError(class_path, f"[Errno {number}] {os.strerror(number)}: {path!r}")


def refusal_error(error: CallsheetError) -> TransferredError:
    """Returns the error for a client if the scheduler refused an action or could not be reached."""
    if isinstance(error, InvalidArgumentError):
        return TransferredError("builtins.ValueError", str(error))
    code = error.code if isinstance(error, RefusedError) else type(error).__name__
    fault = swerex_error("SwerexException", f"{code}: {error}", kind="infra", reason=code)
    # Job or trajectory were closed by others. What is refused for another reason may go well the next time.
    fault.ends_sandbox = isinstance(error, RefusedError) and error.field in {"job_id", "trajectory_id"}
    return fault


def payload_error(error: PayloadError) -> TransferredError:
    """An outcome is there, but its bytes are not: no result is better than half of one."""
    return swerex_error("SwerexException", str(error), kind="infra", reason="payload_lost")


def outcome_error(outcome: NoResult) -> TransferredError:
    """Returns the error of an action that has no result. A caller that knows the command reports its timeouts."""
    if isinstance(outcome, Failed):
        return _failure_error(outcome)
    about = {"action_id": outcome.action_id}
    if isinstance(outcome, Expired):
        message = f"EXPIRED {outcome.timeout.value}: it did not start, or not end, in time"
        return swerex_error("SwerexException", message, kind="expired", reason=outcome.timeout.value, **about)
    message = f"CANCELLED: {outcome.reason}"
    fault = swerex_error("SwerexException", message, kind="cancelled", reason=outcome.reason, **about)
    fault.ends_sandbox = True
    return fault


def _failure_error(outcome: Failed[CommandResult] | Failed[EnvResetResult]) -> TransferredError:
    kind, reason = outcome.kind, outcome.reason
    about = {"kind": kind.value, "reason": reason, "action_id": outcome.action_id}
    message = f"{kind.name} {reason}: {outcome.message}"
    if kind is FailureKind.TIMEOUT:
        return swerex_error("CommandTimeoutError", message, **about)
    if reason in _NOT_STARTED:
        return TransferredError(_os_error_in(outcome.message), outcome.message, about)
    if kind is FailureKind.POLICY or reason in _BAD_REQUESTS:
        return TransferredError("builtins.ValueError", message, about)
    fault = swerex_error("SwerexException", message, **about)
    fault.ends_sandbox = reason == "state_lost"
    return fault


class SwerexWords(FaultWords):
    """Faults of sandboxes as exceptions of SWE-ReX's clients."""

    def refused(self, error: CallsheetError) -> TransferredError:
        """See `FaultWords`."""
        return refusal_error(error)

    def payload_lost(self, error: PayloadError) -> TransferredError:
        """See `FaultWords`."""
        return payload_error(error)

    def no_result(self, outcome: NoResult) -> TransferredError:
        """See `FaultWords`."""
        return outcome_error(outcome)

    def closed(self) -> TransferredError:
        """See `FaultWords`."""
        return swerex_error("SwerexException", "the runtime was closed while it started")


def _os_error_in(message: str) -> str:
    """The class of an error whose message ends as the system words it."""
    for number, class_path in _OS_ERRORS.items():
        if message.endswith(os.strerror(number)):
            return class_path
    return "builtins.OSError"
