"""A stage's bounds as rows of numbers, for solvers that take a model as one message.

The columns are some of the stage's options in an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.question.instance import Integers
from callsheet.scheduler.planner.solvers.stage import Stage
from numpy.typing import NDArray


class LinearRow(NamedTuple):
    """``sum amounts[i] * x[columns[i]] <= most``, and the number of the row; those of classes come last."""

    number: int
    most: int
    columns: list[int]
    amounts: list[int]


def linear_rows(stage: Stage, options: Integers) -> Iterator[LinearRow]:
    """The rows of a stage in order, then one for the members of each class; those that cannot be filled are left out.

    Args:
        stage: The stage.
        options: Indexes of the options that are columns.
    """
    row, column, amount = _coefficients(stage, options)
    matters = fillable(stage, options)[row]
    row, column, amount = row[matters], column[matters], amount[matters]
    order = np.argsort(row, kind="stable")
    most: list[int] = [*stage.capacity.tolist(), *stage.count.tolist()]
    first = np.searchsorted(row[order], np.arange(len(most) + 1)).tolist()
    columns, amounts = column[order].tolist(), amount[order].tolist()
    for number, (units, (begin, end)) in enumerate(zip(most, pairwise(first), strict=True)):
        if begin < end:
            yield LinearRow(number, units, columns[begin:end], amounts[begin:end])


def fillable(stage: Stage, options: Integers) -> NDArray[np.bool_]:
    """Whether more of each row, classes behind the others, could be asked for than there is: the others bind nobody.

    Not more than all options at their limits take, nor more than the members of a whole round that take the most each.
    """
    limit, row, amount = stage.limit[options], stage.row[options], stage.amount[options]
    together = np.bincount(row.ravel(), (amount * limit[:, None]).ravel(), len(stage.capacity))
    largest = np.zeros(len(stage.capacity), np.int64)
    np.maximum.at(largest, row, amount)
    asked = np.minimum(together, largest * float(stage.capacity[stage.cap_row]))
    asked[stage.cap_row] = together[stage.cap_row]
    members = np.bincount(stage.option_class[options], limit, len(stage.count))
    return np.concatenate([asked > stage.capacity, members > stage.count])


def _coefficients(stage: Stage, options: Integers) -> tuple[Integers, Integers, Integers]:
    """(row, column, amount) of every coefficient but zeros, each place named once."""
    owner = len(stage.capacity) + stage.option_class[options]
    row = np.concatenate([stage.row[options], owner[:, None]], axis=1).ravel()
    amount = np.concatenate([stage.amount[options], np.ones((len(options), 1), np.int64)], axis=1).ravel()
    column = np.repeat(np.arange(len(options)), stage.row.shape[1] + 1)
    charged = amount > 0
    return row[charged], column[charged], amount[charged]
