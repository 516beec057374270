"""Refusals of requests that break a rule. Those of the contract are the core's own."""

from __future__ import annotations

from callsheet.v1.refusals import RefusalCode, RefusedError, invalid

__all__ = ["MustWaitError", "RefusalCode", "RefusedError", "failed_precondition", "invalid", "not_found"]


class MustWaitError(Exception):
    """An event comes too early: what takes many steps and comes before it is under way still."""


def not_found(field: str, value: object, rule: str) -> RefusedError:
    """Returns the refusal of a name for what there is not."""
    return RefusedError(RefusalCode.NOT_FOUND, field, value, rule)


def failed_precondition(field: str, value: object, rule: str) -> RefusedError:
    """Returns the refusal of what cannot be as things stand."""
    return RefusedError(RefusalCode.FAILED_PRECONDITION, field, value, rule)
