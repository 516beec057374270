"""Errors for callers whose calls have no reply: from refusals and outcomes to HTTP. Pure.

Clients of OpenAI and Anthropic try again after 408, 409, 429 and 5xx, unless a header says otherwise. So 5xx is for
calls that may go well the next time, and a conflict carries that header.
"""

from __future__ import annotations

from typing import Final

from callsheet.client import (
    AccessDeniedError,
    AlreadyExistsError,
    CallsheetError,
    Cancelled,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    ForgottenError,
    GenerateResult,
    InvalidArgumentError,
    NotFoundError,
    QueueFullError,
    Reason,
    RefusedError,
)

BAD_REQUEST: Final = 400
CONFLICT: Final = 409
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
UNKNOWN: Final = 401
# OpenAI's code of a prompt that is longer than the model's context.
TOO_LONG: Final = "context_length_exceeded"
# The field of a request that has the prompt, until its dialect names its own.
PROMPT: Final = "messages"
_BROKEN: Final = 500
_FORBIDDEN: Final = 403
_REQUEST_TIMEOUT: Final = 408
_TIMEOUT: Final = 504
_RETRY_S: Final = 1.0
# What the caller's own request brought about; the same would come again.
_OF_THE_REQUEST: Final = frozenset({Reason.TOKEN_OUT_OF_VOCABULARY, Reason.INVALID_SAMPLING, Reason.NO_TOKENIZER})
_CLOSED: Final = "is closed, or was never opened: it takes no more calls"


class NoReplyError(Exception):
    """A call has no reply.

    Attributes:
        status: The answer's HTTP status.
        retry_after_s: When to try again, for those who are to.
        field: The field of the request that it is about; None if it is about none.
        failure: Kind and reason of the action's failure, as "INFRA/manager_lost"; empty if no action failed.
        code: What programs tell the fault by; None for most.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        field: str | None = None,
        failure: str = "",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.field = field
        self.failure = failure
        self.code = code

    @property
    def is_passing(self) -> bool:
        """Returns whether clients try again by themselves."""
        return self.status in {_REQUEST_TIMEOUT, TOO_MANY} or self.status >= _BROKEN


def of_error(error: CallsheetError) -> NoReplyError:
    """Returns the error for a caller if the scheduler refused an action or could not be reached."""
    said = str(error)
    match error:
        case ForgottenError() | AlreadyExistsError():
            return NoReplyError(CONFLICT, said)
        case NotFoundError() | FailedPreconditionError() if error.field in {"job_id", "trajectory_id"}:
            return NoReplyError(CONFLICT, f"{error.field} {error.value!r} {_CLOSED}", field=error.field)
        case InvalidArgumentError():
            return NoReplyError(BAD_REQUEST, said, field=error.field)
        case QueueFullError():
            return NoReplyError(TOO_MANY, said, retry_after_s=_or_default(error.retry_after_s))
        case AccessDeniedError():
            return NoReplyError(_FORBIDDEN, said)
        case RefusedError():
            return NoReplyError(UNAVAILABLE, said, retry_after_s=_or_default(error.retry_after_s))
        case _:
            return NoReplyError(UNAVAILABLE, said, retry_after_s=_RETRY_S)


def of_outcome(outcome: Failed[GenerateResult] | Cancelled[GenerateResult] | Expired) -> NoReplyError:
    """Returns the error for a caller if a generate ended without a reply."""
    said = str(outcome)
    if isinstance(outcome, Cancelled):
        return NoReplyError(CONFLICT, said)
    if isinstance(outcome, Expired):
        return NoReplyError(UNAVAILABLE, said, retry_after_s=_RETRY_S)
    failure = f"{outcome.kind.name}/{outcome.reason.value}"
    match outcome.kind:
        case FailureKind.ENV if outcome.reason is Reason.PROMPT_TOO_LONG:
            return NoReplyError(BAD_REQUEST, said, field=PROMPT, failure=failure, code=TOO_LONG)
        case FailureKind.ENV if outcome.reason in _OF_THE_REQUEST:
            return NoReplyError(BAD_REQUEST, said, failure=failure)
        case FailureKind.ENV if outcome.reason is Reason.UNSERVABLE:
            # As where the scheduler refuses the same: an engine may come.
            return NoReplyError(UNAVAILABLE, said, retry_after_s=_RETRY_S, failure=failure)
        case FailureKind.TIMEOUT:
            return NoReplyError(_TIMEOUT, said, failure=failure)
        case FailureKind.QUOTA:
            return NoReplyError(TOO_MANY, said, retry_after_s=_or_default(outcome.retry_after_s), failure=failure)
        case FailureKind.INFRA:
            return NoReplyError(UNAVAILABLE, said, retry_after_s=_RETRY_S, failure=failure)
        case _:
            return NoReplyError(_BROKEN, said, failure=failure)


def aborted() -> NoReplyError:
    """The engine ended a generation for an update of its weights. Going on with other weights is for no gateway."""
    return NoReplyError(UNAVAILABLE, "the engine's weights were replaced meanwhile: try again", retry_after_s=_RETRY_S)


def _or_default(retry_after_s: float | None) -> float:
    return _RETRY_S if retry_after_s is None else retry_after_s
