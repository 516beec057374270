"""The price-greedy: the solver's warm start, its fallback, and the whole answer where it can be proved best.

Two orders are tried, and the better result counts. In one, options with the highest benefit per scarce unit go first.
In the other each class keeps to the option with the highest benefit, which is best where nothing is scarce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from callsheet.scheduler.planner.instance import Floats, Integers
from callsheet.scheduler.planner.stage import Charges, Stage


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """A feasible solution of a stage.

    Attributes:
        starts: Members to start by option, shape (options,).
        brought_in: Instances to bring in, shape (set_ups,).
        objective: Its cost.
    """

    starts: Integers
    brought_in: Integers
    objective: float


def greedy(stage: Stage) -> Counts:
    """The better of two greedy fillings."""
    scarcity = _scarcity(stage)
    by_density = np.argsort(-stage.benefit / scarcity, kind="stable")
    best_of_class = np.zeros(len(stage.count))
    np.maximum.at(best_of_class, stage.option_class, stage.benefit)
    favourite = stage.benefit >= best_of_class[stage.option_class]
    by_favourite = np.lexsort((-stage.benefit / scarcity, ~favourite))
    candidates = [fill(stage, order) for order in (by_density, by_favourite)]
    return min(candidates, key=lambda counts: counts.objective)


def unbounded_optimum(stage: Stage) -> float:
    """Cost if every member could have its best option: no solution costs less."""
    best = np.zeros(len(stage.count))
    np.maximum.at(best, stage.option_class, stage.benefit)
    return stage.baseline - float((best * stage.count).sum())


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
        brought_in = start.brought_in if start is not None else np.zeros(len(stage.set_ups), np.int64)
        taken = np.bincount(stage.option_class, weights=starts, minlength=len(stage.count)).astype(np.int64)
        self.left: list[int] = (stage.count - taken).tolist()
        self._starts: list[int] = starts.tolist()
        self._limit: list[int] = stage.limit.tolist()
        self._brought_in: list[int] = brought_in.tolist()
        self._free: list[int] = (stage.capacity - stage.used(starts, brought_in)).tolist()
        self._providers = {each.provides[0]: index for index, each in enumerate(stage.set_ups)}

    def add(self, option: int, owner: int) -> None:
        """Starts as many members of a class with an option as fit; brings instances in where that pays."""
        wanted = min(self.left[owner], self._limit[option] - self._starts[option])
        charges = self._stage.charges[option]
        while wanted > 0:
            taken = self._fitting(charges, wanted)
            if taken:
                self._take(option, owner, taken, charges)
                wanted -= taken
            if wanted <= 0 or not self._bring_in_for(option, wanted, charges):
                return

    def counts(self) -> Counts:
        """The solution as it is now."""
        starts, brought_in = np.array(self._starts, np.int64), np.array(self._brought_in, np.int64)
        return Counts(starts, brought_in, self._stage.objective(starts, brought_in))

    def _fitting(self, charges: Charges, most: int) -> int:
        free = self._free
        for row, units in charges:
            if free[row] < units * most:
                most = free[row] // units
                if most <= 0:
                    return 0
        return most

    def _take(self, option: int, owner: int, members: int, charges: Charges) -> None:
        self._starts[option] += members
        self.left[owner] -= members
        for row, units in charges:
            self._free[row] -= units * members

    def _bring_in_for(self, option: int, wanted: int, charges: Charges) -> bool:
        """Brings in one instance for an option if the members it lets start are worth it."""
        if not self._providers:
            return False
        short = [row for row, units in charges if self._free[row] < units]
        if len(short) != 1 or short[0] not in self._providers:
            return False
        index = self._providers[short[0]]
        each = self._stage.set_ups[index]
        row, provided = each.provides
        room = {charged: self._free[charged] for charged, _ in each.charges}
        if self._brought_in[index] >= each.limit or any(room[charged] < units for charged, units in each.charges):
            return False
        for charged, units in each.charges:
            room[charged] -= units
        members = min(
            [wanted]
            + [
                ((self._free[used] if used not in room else room[used]) + (provided if used == row else 0)) // units
                for used, units in charges
            ]
        )
        if members * self._stage.benefit[option] <= self._stage.set_up_cost[index]:
            return False
        self._brought_in[index] += 1
        self._free[row] += provided
        for charged, units in each.charges:
            self._free[charged] -= units
        return True


def _scarcity(stage: Stage) -> Floats:
    """Share of the free units that a member takes, summed over rows; never 0."""
    free = np.maximum(stage.capacity.astype(np.float64), 1e-9)
    for each in stage.set_ups:
        free[each.provides[0]] += each.provides[1] * each.limit
    taken: Floats = np.maximum((stage.amount / free[stage.row]).sum(axis=1), 1e-12)
    return taken
