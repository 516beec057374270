"""Costs that managers report, as the core adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from callsheet.scheduler.core.words.costs import Cost
from callsheet.v1 import common_pb2
from callsheet.v1.names import MAX_ID

MAX_RESOURCES: Final = 64
"""The most resources that one attempt may report."""
MAX_AMOUNT: Final = 1e12
"""The most of one resource that one attempt may report."""


def cost_of(message: common_pb2.Cost) -> Cost:
    """Returns the cost that a manager reports, without impossible amounts: they would stay in sums for months."""
    return Cost(_possible(message.held), _possible(message.used))


def _possible(told: Mapping[str, float]) -> dict[str, float]:
    if not 0 < len(told) <= MAX_RESOURCES:
        return {}
    # By keys, as protobuf's items take twice as long: this comes once for every attempt.
    return {each: amount for each in told if 0.0 < (amount := told[each]) <= MAX_AMOUNT and len(each) <= MAX_ID}
