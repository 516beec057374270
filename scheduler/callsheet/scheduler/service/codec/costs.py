"""Costs, between the contract and the core."""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.service.codec.rules import MAX_ID
from callsheet.v1 import common_pb2

MAX_RESOURCES: Final = 64
"""The most resources that one attempt may tell of, and of what each may have at most."""
MAX_AMOUNT: Final = 1e12


def cost_of(message: common_pb2.Cost) -> Cost:
    """What a manager told; the scheduler adds it up for months, so that what cannot be is left out."""
    return Cost(
        *(
            {each: amount for each, amount in told.items() if 0.0 < amount <= MAX_AMOUNT and len(each) <= MAX_ID}
            if 0 < len(told) <= MAX_RESOURCES
            else {}
            for told in (message.held, message.used)
        )
    )


def cost_message(cost: Cost) -> common_pb2.Cost:
    """A cost as it is told."""
    return common_pb2.Cost(held=cost.held, used=cost.used)
