"""Refusals of requests that break a rule: the rule, its field, and the code of the answer."""

from __future__ import annotations

from enum import IntEnum


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
    ) -> None:
        super().__init__(f"{field}: {rule} (got {str(value)[:200]!r})")
        self.code = code
        self.field = field
        self.value = str(value)[:200]
        self.rule = rule
        self.retry_after = retry_after
        self.forgotten = forgotten


class MustWaitError(Exception):
    """An event comes too early: what takes many steps and comes before it is under way still."""


def invalid(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of a bad field."""
    return RefusedError(RefusalCode.INVALID_ARGUMENT, field, value, rule)


def not_found(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of a name for what there is not."""
    return RefusedError(RefusalCode.NOT_FOUND, field, value, rule)


def failed_precondition(field: str, value: object, rule: str) -> RefusedError:
    """The refusal of what cannot be as things stand."""
    return RefusedError(RefusalCode.FAILED_PRECONDITION, field, value, rule)
