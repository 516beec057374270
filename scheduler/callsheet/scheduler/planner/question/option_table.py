"""The options of all classes of an instance as one table, so that few operations price and filter them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers, OptionBlock, PlanningInstance


@dataclass(frozen=True, slots=True, eq=False)
class OptionTable:
    """Options class by class, each in the order of its block.

    Attributes:
        option_class: Index of the class of each option, shape (options,).
        first: Index of each class's first option, shape (classes,).
        duration_s: Shape (options,).
        setup_s: Shape (options,).
        resource: Indexes of the charged resources, shape (options, most charges); -1 where there are fewer.
        amount: Units charged, of the same shape; 0 where there are fewer.
        substitute: (option, another one of its class that charges no more of anything), shape (pairs, 2).
    """

    option_class: Integers
    first: Integers
    duration_s: Floats
    setup_s: Floats
    resource: Integers
    amount: Integers
    substitute: Integers

    @staticmethod
    def of(instance: PlanningInstance) -> OptionTable:
        """Puts the blocks of an instance's classes one after another."""
        blocks = [each.block for each in instance.classes]
        sizes = np.array([len(block.options) for block in blocks], np.int64)
        first = np.cumsum(sizes) - sizes
        resource, amount = _stacked(blocks, int(sizes.sum()))
        return OptionTable(
            np.repeat(np.arange(len(blocks)), sizes),
            first,
            np.concatenate([block.duration_s for block in blocks]),
            np.concatenate([block.setup_s for block in blocks]),
            resource,
            amount,
            np.concatenate([block.substitute + start for block, start in zip(blocks, first.tolist(), strict=True)]),
        )


def _stacked(blocks: Sequence[OptionBlock], total: int) -> tuple[Integers, Integers]:
    widths = {block.resource.shape[1] for block in blocks}
    if len(widths) == 1:
        return np.concatenate([block.resource for block in blocks]), np.concatenate([block.amount for block in blocks])
    most = max(widths)
    resource = np.full((total, most), -1, np.int64)
    amount = np.zeros((total, most), np.int64)
    start = 0
    for block in blocks:
        count, width = block.resource.shape
        resource[start : start + count, :width] = block.resource
        amount[start : start + count, :width] = block.amount
        start += count
    return resource, amount
