"""What the client raises.

    CallsheetError
    ├── ClientClosedError            the client was closed before there was an answer
    ├── ConnectionLostError          no connection to the scheduler for longer than the client may wait
    ├── ForkedProcessError           gRPC cannot work in this process: use "spawn" or "forkserver"
    ├── PayloadError                 stored bytes could not be read or written, or are not what they should be
    ├── NotSucceededError            `unwrap()` of an outcome that is no success
    └── RefusedError                 the scheduler refused a request: `code`, `field`, `value`, `rule`, `retry_after_s`
        ├── InvalidArgumentError     (also a ValueError) the request breaks a rule of the contract
        ├── NotFoundError            (also a LookupError) what the request names is not there
        ├── AlreadyExistsError       the id is taken by another body
        ├── FailedPreconditionError  the request does not fit the state of the scheduler
        ├── QueueFullError           a queue or quota is full: try again after `retry_after_s`
        ├── UnavailableError         the scheduler cannot serve now: try again after `retry_after_s`
        └── AccessDeniedError        the client is not who it must be

How an action of the user ends is never an exception: that is an `Outcome`.
"""

from __future__ import annotations

from typing import Any


class CallsheetError(Exception):
    """The base of everything the client raises."""


class ClientClosedError(CallsheetError):
    """The client was closed before there was an answer. Actions that were accepted go on in the scheduler."""


class ConnectionLostError(CallsheetError):
    """There was no connection to the scheduler for longer than the client may wait.

    Actions that were accepted go on in the scheduler: submit one again under the same action id to attach to it.
    """


class ForkedProcessError(CallsheetError):
    """This process was forked after its parent had used gRPC, which does not survive that."""


class PayloadError(CallsheetError):
    """Stored bytes could not be read or written, or are not the bytes that were asked for."""


class NotSucceededError(CallsheetError):
    """An outcome was unwrapped that is no success.

    Attributes:
        outcome: The outcome: `Failed`, `Cancelled` or `Expired`.
    """

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class RefusedError(CallsheetError):
    """The scheduler (or the client on its behalf) refused a request.

    Attributes:
        code: The canonical gRPC code, for instance "INVALID_ARGUMENT".
        field: Path of the offending field from the request's root; empty if it is not about one field.
        value: The offending value, shortened.
        rule: The rule that was broken, as a sentence.
        retry_after_s: Seconds to wait before another try; None if trying again cannot help.
    """

    def __init__(
        self,
        code: str,
        *,
        field: str = "",
        value: str = "",
        rule: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, field, value, rule, retry_after_s)
        self.code = code
        self.field = field
        self.value = value
        self.rule = rule
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        """One line: code, field, value and rule."""
        subject = f" {self.field} = {self.value!r}:" if self.field else ""
        retry = "" if self.retry_after_s is None else f" (try again after {self.retry_after_s:g} s)"
        return f"{self.code}:{subject} {self.rule}{retry}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by the attributes: the keyword-only parameters would be lost by Exception's own rule."""
        given = {"field": self.field, "value": self.value, "rule": self.rule, "retry_after_s": self.retry_after_s}
        return _rebuild, (type(self), self.code, given)


class InvalidArgumentError(RefusedError, ValueError):
    """The request breaks a rule of the contract, whatever the state of the scheduler."""


class NotFoundError(RefusedError, LookupError):
    """The job, trajectory, action or manager is not there."""


class AlreadyExistsError(RefusedError):
    """The id is taken by something with another body."""


class FailedPreconditionError(RefusedError):
    """The request does not fit the state of the scheduler, for instance no manager can ever serve the action."""


class QueueFullError(RefusedError):
    """A queue or quota is full."""


class UnavailableError(RefusedError):
    """The scheduler cannot serve the request now."""


class AccessDeniedError(RefusedError):
    """The client is not known, or may not do this."""


_CLASSES: dict[str, type[RefusedError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "OUT_OF_RANGE": InvalidArgumentError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "FAILED_PRECONDITION": FailedPreconditionError,
    "RESOURCE_EXHAUSTED": QueueFullError,
    "UNAVAILABLE": UnavailableError,
    "PERMISSION_DENIED": AccessDeniedError,
    "UNAUTHENTICATED": AccessDeniedError,
}


def refused(
    code: str, *, field: str = "", value: str = "", rule: str = "", retry_after_s: float | None = None
) -> RefusedError:
    """Returns the exception of the class that belongs to `code`; plain RefusedError for a code without a class."""
    return _CLASSES.get(code, RefusedError)(code, field=field, value=value, rule=rule, retry_after_s=retry_after_s)


def invalid(field: str, value: object, rule: str) -> InvalidArgumentError:
    """Returns the refusal of a value that the client itself can tell to be wrong.

    Args:
        field: Its path, as the scheduler would name it.
        value: The value; shortened to 200 characters.
        rule: The rule it breaks, as a sentence.
    """
    return InvalidArgumentError("INVALID_ARGUMENT", field=field, value=str(value)[:200], rule=rule)


def _rebuild(error: type[RefusedError], code: str, given: dict[str, Any]) -> RefusedError:
    return error(code, **given)
