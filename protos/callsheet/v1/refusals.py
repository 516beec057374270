"""The refusal of a request that breaks a rule. This module needs no protobuf, so the scheduler's core raises it too."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NUL: Final = "\0"
CLIMB: Final = ".."


class RefusalCode(IntEnum):
    """The canonical gRPC codes of refusals."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RefusedError(Exception):
    """A request broke a rule; nothing was changed.

    Attributes:
        code: Canonical gRPC code.
        field: Path of the offending field.
        value: The offending value.
        rule: The rule as a sentence.
        retry_after: Seconds after which trying again may help; None if it cannot.
        forgotten: It is about an action that had its outcome, which is no longer kept.
        culprit: The part of a text that a model may have written: `NUL`, `CLIMB`, or empty for any other part. None if
            the caller is at fault.
    """

    def __init__(
        self,
        code: RefusalCode,
        field: str,
        value: object,
        rule: str,
        retry_after: float | None = None,
        *,
        forgotten: bool = False,
        culprit: str | None = None,
    ) -> None:
        super().__init__(f"{field}: {rule} (got {str(value)[:200]!r})")
        self.code = code
        self.field = field
        self.value = str(value)[:200]
        self.rule = rule
        self.retry_after = retry_after
        self.forgotten = forgotten
        self.culprit = culprit


def invalid(field: str, value: object, rule: str) -> RefusedError:
    """Returns the refusal of a bad field."""
    return RefusedError(RefusalCode.INVALID_ARGUMENT, field, value, rule)


def bad_text(field: str, value: object, rule: str, culprit: str = "") -> RefusedError:
    """Returns the refusal of a text that no program can be given and that a model may have written."""
    return RefusedError(RefusalCode.INVALID_ARGUMENT, field, value, rule, culprit=culprit)
