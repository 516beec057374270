"""The price-greedy: the solver's warm start, its fallback, and the whole answer where it can be proved best.

Two orders are tried, and the better result counts. In one, options with the highest benefit per scarce unit go first.
In the other each class keeps to the option with the highest benefit, which is best where nothing is scarce.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers
from callsheet.scheduler.planner.solvers.solver import Answer, Counts, Status
from callsheet.scheduler.planner.solvers.stage import Charges, Stage


class Greedy:
    """The better of two greedy fillings. Where every member got its best option nothing can be better."""

    def solve(self, stage: Stage, incumbent: Answer) -> Answer:
        """See `Solver.solve`."""
        best = min(incumbent.counts, *_fillings(stage), key=lambda counts: counts.objective)
        return Answer(best, max(incumbent.bound, unbounded_optimum(stage)), Status.FALLBACK).judged(stage)


def _fillings(stage: Stage) -> Iterator[Counts]:
    scarcity = _scarcity(stage)
    by_density = np.argsort(-stage.benefit / scarcity, kind="stable")
    favourite = stage.benefit >= _most_benefit(stage)[stage.option_class]
    by_favourite = np.lexsort((-stage.benefit / scarcity, ~favourite))
    return (fill(stage, order) for order in (by_density, by_favourite))


def unbounded_optimum(stage: Stage) -> float:
    """Cost if every member could have its best option: no solution costs less."""
    return stage.baseline - float((_most_benefit(stage) * stage.count).sum())


def _most_benefit(stage: Stage) -> Floats:
    """Of each class's best option, shape (classes,)."""
    best = np.zeros(len(stage.count))
    np.maximum.at(best, stage.option_class, stage.benefit)
    return best


def fill(stage: Stage, order: Integers, start: Counts | None = None) -> Counts:
    """Starts as many members as fit, option by option in an order.

    Args:
        stage: The stage.
        order: Indexes of options.
        start: A solution to add to; nothing by default.
    """
    filling = _Filling(stage, start)
    for option, owner in zip(order.tolist(), stage.option_class[order].tolist(), strict=True):
        if filling.left[owner] > 0:
            filling.add(option, owner)
    return filling.counts()


class _Filling:
    """A solution that grows; plain lists, as single numbers of arrays are slow.

    Attributes:
        left: Members of each class that are not started.
    """

    def __init__(self, stage: Stage, start: Counts | None) -> None:
        self._stage = stage
        starts = start.starts if start is not None else np.zeros(len(stage.options), np.int64)
        taken = np.bincount(stage.option_class, weights=starts, minlength=len(stage.count)).astype(np.int64)
        self.left: list[int] = (stage.count - taken).tolist()
        self._starts: list[int] = starts.tolist()
        self._limit: list[int] = stage.limit.tolist()
        self._free: list[int] = (stage.capacity - stage.used(starts)).tolist()

    def add(self, option: int, owner: int) -> None:
        """Starts as many members of a class with an option as fit."""
        charges = self._stage.charges[option]
        members = self._fitting(charges, min(self.left[owner], self._limit[option] - self._starts[option]))
        if members > 0:
            self._starts[option] += members
            self.left[owner] -= members
            for row, units in charges:
                self._free[row] -= units * members

    def counts(self) -> Counts:
        """The solution as it is now."""
        starts = np.array(self._starts, np.int64)
        return Counts(starts, self._stage.objective(starts))

    def _fitting(self, charges: Charges, most: int) -> int:
        free = self._free
        for row, units in charges:
            if free[row] < units * most:
                most = free[row] // units
                if most <= 0:
                    return 0
        return most


def _scarcity(stage: Stage) -> Floats:
    """Share of the free units that a member takes, summed over rows; never 0."""
    free = np.maximum(stage.capacity.astype(np.float64), 1e-9)
    taken: Floats = np.maximum((stage.amount / free[stage.row]).sum(axis=1), 1e-12)
    return taken
