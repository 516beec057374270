"""The exceptions of the client.

    CallsheetError
    ├── ClientClosedError            the client was closed before there was an answer
    ├── ConnectionLostError          (also a ConnectionError) no connection to the scheduler for too long
    ├── ForkedProcessError           gRPC cannot work in this process: use "spawn" or "forkserver"
    ├── WeightsNotProvedError        no engine serves the weights that were published; the message has each one's reason
    ├── PayloadError                 stored bytes could not be read or written, or are other bytes than asked for
    ├── NotSucceededError            `unwrap()` of an outcome that is no success; `outcome` is that outcome
    │   ├── PolicyError              the model's own fault
    │   ├── EnvError                 the environment's own fault
    │   ├── InfraError               machines, processes or networks: never a reward of 0
    │   ├── ActionTimeoutError       (also a TimeoutError) the execution clock ran out
    │   ├── QuotaError               an outside quota
    │   ├── ResourceLimitError       a limit of the sandbox: memory, processes or disk
    │   ├── ActionCancelledError     the action was cancelled
    │   └── ActionExpiredError       a deadline ran out before the action could finish
    └── RefusedError                 the scheduler refused a request: `code`, `field`, `value`, `rule`, `retry_after_s`
        ├── InvalidArgumentError     (also a ValueError) the request breaks a rule of the contract
        │   └── BadTextError         a text that no program, file or message can take
        ├── NotFoundError            (also a LookupError) the request names something that does not exist
        ├── AlreadyExistsError       something with another body has the id
        ├── ForgottenError           the action ended long ago; its outcome is forgotten, and it does not run again
        ├── FailedPreconditionError  the request does not fit the state of the scheduler
        ├── QueueFullError           a queue or quota is full: try again after `retry_after_s`
        ├── UnavailableError         the scheduler cannot serve now: try again after `retry_after_s`
        ├── UnimplementedError       (also a NotImplementedError) the scheduler does not serve the request (yet)
        └── AccessDeniedError        the client's token is unknown, or lacks the right

The end of an action is never an exception: it is an `Outcome`. `unwrap()` turns it into an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, NoReturn

from callsheet.v1 import refusals

HALF: Final = "\ud800"
"""Stands for each half of a surrogate pair."""


class RefusalCode(StrEnum):
    """The reason of a refusal: the canonical codes of gRPC, in the order of their numbers from 1."""

    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    """No code, or one newer than this client."""
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"


class CallsheetError(Exception):
    """The base of all exceptions of the client."""

    def __str__(self) -> str:
        """Returns the message, with control characters as escapes."""
        return _as_text(super().__str__())


class ClientClosedError(CallsheetError):
    """The client was closed before the scheduler answered. Accepted actions continue in the scheduler."""


class ConnectionLostError(CallsheetError, ConnectionError):
    """There was no connection to the scheduler for longer than the client may wait.

    Accepted actions continue in the scheduler. Submit the action again under its action id to attach to it.
    """


class ForkedProcessError(CallsheetError):
    """This process was forked after its parent had used gRPC, and gRPC does not work after such a fork."""


class PayloadError(CallsheetError):
    """Stored bytes could not be read or written, or are other bytes than asked for."""


class WeightsNotProvedError(CallsheetError):
    """No engine serves the published weights. The message has each engine's reason."""


class NotSucceededError(CallsheetError):
    """`unwrap()` of an outcome other than a success.

    Attributes:
        outcome: The outcome: `Failed`, `Cancelled` or `Expired`.
    """

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        """Returns one line: kind, reason, message and action."""
        return _as_text(str(self.outcome))


class PolicyError(NotSucceededError):
    """The model's own fault, for instance an action that cannot be carried out."""


class EnvError(NotSucceededError):
    """The environment's own fault, for instance a set-up command that fails."""


class InfraError(NotSucceededError):
    """Machines, processes or networks of the service failed. The model is not at fault, so never a reward of 0."""


class ActionTimeoutError(NotSucceededError, TimeoutError):
    """The execution clock of the action ran out."""


class QuotaError(NotSucceededError):
    """An outside quota is used up; `outcome.retry_after_s` may have the time until then."""


class ResourceLimitError(NotSucceededError):
    """The action passed a limit of its sandbox: memory, processes or disk."""


class ActionCancelledError(NotSucceededError):
    """The action was cancelled by its client, its trajectory, its group or staleness."""


class ActionExpiredError(NotSucceededError):
    """A deadline ran out before the action could finish."""


class RefusedError(CallsheetError):
    """The scheduler (or the client on its behalf) refused a request.

    Attributes:
        code: The canonical code of gRPC.
        field: Path of the offending field from the request's root; empty if no single field is at fault.
        value: The offending value, shortened.
        rule: The broken rule, as a sentence.
        retry_after_s: Seconds to wait before another try; None if another try cannot help.
    """

    def __init__(
        self,
        code: RefusalCode,
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
        """Returns one line: code, field, value and rule."""
        subject = f" {self.field} = {self.value!r}:" if self.field else ""
        retry = "" if self.retry_after_s is None else f" (try again after {self.retry_after_s:g} s)"
        return _as_text(f"{self.code}:{subject} {self.rule}{retry}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the attributes; Exception's own rule would lose the keyword-only parameters."""
        given = {"field": self.field, "value": self.value, "rule": self.rule, "retry_after_s": self.retry_after_s}
        return _rebuild, (type(self), self.code, given)


class InvalidArgumentError(RefusedError, ValueError):
    """The request breaks a rule of the contract, whatever the state of the scheduler."""


class BadTextError(InvalidArgumentError):
    """A text that no program, file or message can take; mostly a model wrote it.

    The verbs of jobs and trajectories return the outcome POLICY `bad_command` instead, except resets and generations.

    Attributes:
        culprit: The offending part: a NUL, `HALF` for half of a surrogate pair, or ".."; empty for other parts.
    """

    culprit = ""


class NotFoundError(RefusedError, LookupError):
    """The job, trajectory, action or manager does not exist, or is no longer open."""


class AlreadyExistsError(RefusedError):
    """Something with another body has the id."""


class ForgottenError(RefusedError):
    """The action ended long ago, and the scheduler no longer keeps its outcome. The action does not run again.

    The same holds for a trajectory or a group that was closed long ago: it does not open again. The code is
    ALREADY_EXISTS for a submit or an open, and NOT_FOUND for a question about the earlier outcome.
    """


class FailedPreconditionError(RefusedError):
    """The request does not fit the scheduler's state: for instance, no manager can ever serve the action."""


class QueueFullError(RefusedError):
    """A queue or quota is full."""


class UnavailableError(RefusedError):
    """The scheduler cannot serve the request now."""


class UnimplementedError(RefusedError, NotImplementedError):
    """The scheduler does not serve the request: the part is not built yet, or the scheduler is older than the
    client."""


class AccessDeniedError(RefusedError):
    """The scheduler does not know the client's token, or the token lacks the right."""


_CLASSES: dict[RefusalCode, type[RefusedError]] = {
    RefusalCode.INVALID_ARGUMENT: InvalidArgumentError,
    RefusalCode.OUT_OF_RANGE: InvalidArgumentError,
    RefusalCode.NOT_FOUND: NotFoundError,
    RefusalCode.ALREADY_EXISTS: AlreadyExistsError,
    RefusalCode.FAILED_PRECONDITION: FailedPreconditionError,
    RefusalCode.RESOURCE_EXHAUSTED: QueueFullError,
    RefusalCode.UNAVAILABLE: UnavailableError,
    RefusalCode.UNIMPLEMENTED: UnimplementedError,
    RefusalCode.PERMISSION_DENIED: AccessDeniedError,
    RefusalCode.UNAUTHENTICATED: AccessDeniedError,
}


def refused(
    code: RefusalCode, *, field: str = "", value: str = "", rule: str = "", retry_after_s: float | None = None
) -> RefusedError:
    """Returns an exception of the class of `code`; plain RefusedError for a code without a class."""
    return _CLASSES.get(code, RefusedError)(code, field=field, value=value, rule=rule, retry_after_s=retry_after_s)


def invalid(field: str, value: object, rule: str) -> InvalidArgumentError:
    """Returns the refusal of a value that the client itself knows to be wrong.

    Args:
        field: The path of the field, as the scheduler would name it.
        value: The value; shortened to 200 characters.
        rule: The broken rule, as a sentence.
    """
    return InvalidArgumentError(RefusalCode.INVALID_ARGUMENT, field=field, value=str(value)[:200], rule=rule)


def bad_text(field: str, value: str, rule: str, culprit: str = "") -> BadTextError:
    """Returns the refusal of a text, see `invalid` and `BadTextError`."""
    error = BadTextError(RefusalCode.INVALID_ARGUMENT, field=field, value=value[:200], rule=rule)
    error.culprit = culprit
    return error


def broken_rule(refusal: refusals.RefusedError) -> InvalidArgumentError:
    """Returns the client's error for a rule of the contract that a message breaks."""
    if refusal.culprit is None:
        return invalid(refusal.field, refusal.value, refusal.rule)
    return bad_text(refusal.field, refusal.value, refusal.rule, refusal.culprit)


def not_found(field: str, value: str, rule: str) -> RefusedError:
    """Returns the refusal of a name that names nothing."""
    return refused(RefusalCode.NOT_FOUND, field=field, value=value, rule=rule)


def unfit(field: str, value: str, rule: str) -> RefusedError:
    """Returns the refusal of a request that does not fit the present state."""
    return refused(RefusalCode.FAILED_PRECONDITION, field=field, value=value, rule=rule)


@contextmanager
def one_error() -> Iterator[None]:
    """Raises the first of the errors that end a block of tasks; the others are alike.

    An exception group would hide the few lines of a mistake in a rollout among the lines of every task.
    """
    try:
        yield
    except ExceptionGroup as errors:
        raise_alone(errors)


def raise_alone(error: Exception) -> NoReturn:
    """Raises an error, the first of a group, without the context of the place that raises it again."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    raise error from (error.__cause__ if error.__suppress_context__ else error.__context__)


def _rebuild(error: type[RefusedError], code: RefusalCode, given: dict[str, Any]) -> RefusedError:
    return error(code, **given)


def _as_text(said: str) -> str:
    """Returns a text that a terminal shows without obeying; escapes are those of JSON and of the command line."""
    return "".join(each if each.isprintable() or each in "\n\t\xa0" else json.dumps(each)[1:-1] for each in said)
