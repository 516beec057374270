"""A request of a client that breaks a rule, and what its refusal must say."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from tests.support.client_items import Item

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
NOT_BUILT = grpc.StatusCode.UNIMPLEMENTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND


@dataclass(frozen=True)
class Bad:
    """An item that must be refused; `value` and `rule` are parts of what the refusal says."""

    item: Item
    code: grpc.StatusCode
    field: str
    value: str
    rule: str
