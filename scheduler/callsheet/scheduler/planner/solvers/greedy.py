"""The price-greedy: the solver's warm start, its fallback, and the whole answer if it can be proved best.

It tries two orders and keeps the better result. In one, options with the highest benefit per scarce unit go first. In
the other each class keeps to its best option, and the classes go first that would lose the most per scarce unit with
their next best option (Vogel's approximation, see Reinfeld and Vogel, "Mathematical Programming", 1958).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers
from callsheet.scheduler.planner.solvers.stage import SOLVED_GAP, Answer, Counts, Stage, Status

BATCH = 64


def greedy(stage: Stage) -> Answer:
    """The better of two greedy fillings. Where every member got its best option nothing can be better."""
    fillings = (fill(stage, order) for order in (by_density(stage), _by_regret(stage)))
    best = min(fillings, key=lambda counts: counts.objective)
    answer = Answer(best, unbounded_optimum(stage), Status.FALLBACK)
    possible = max(stage.baseline - answer.bound, 1e-12)
    proved = best.objective - answer.bound <= SOLVED_GAP * possible
    return replace(answer, status=Status.BOUND) if proved else answer


def by_density(stage: Stage) -> Integers:
    """The options, those with the most benefit per scarce unit first."""
    return np.argsort(-stage.benefit / _scarcity(stage), kind="stable")


def _by_regret(stage: Stage) -> Integers:
    """The options, the best one of each class first: where it would lose the most without that one."""
    first = np.lexsort((-stage.benefit, stage.option_class))
    owner = stage.option_class[first]
    follows = np.append(owner[1:] == owner[:-1], False)
    next_best = np.where(follows, np.append(stage.benefit[first][1:], 0.0), 0.0)
    regret = np.zeros(len(first))
    regret[first] = stage.benefit[first] - next_best
    favourite = stage.benefit >= _most_benefit(stage)[stage.option_class]
    scarcity = _scarcity(stage)
    return np.lexsort((-np.where(favourite, regret, stage.benefit) / scarcity, ~favourite))


def unbounded_optimum(stage: Stage) -> float:
    """Cost if every member could have its best option: no solution costs less."""
    return stage.baseline - float((_most_benefit(stage) * stage.count).sum())


def _most_benefit(stage: Stage) -> Floats:
    """Returns the benefit of each class's best option, shape (classes,)."""
    best = np.zeros(len(stage.count))
    np.maximum.at(best, stage.option_class, stage.benefit)
    return best


def fill(stage: Stage, order: Integers, start: Counts | None = None) -> Counts:
    """Starts as many members as fit, option by option in an order.

    Options are looked at by the batch, so that those for which nothing is left cost next to nothing.

    Args:
        stage: The stage.
        order: Indexes of options.
        start: A solution to add to; nothing by default.
    """
    starts = np.zeros(len(stage.options), np.int64) if start is None else start.starts.copy()
    taken = np.bincount(stage.option_class, weights=starts, minlength=len(stage.count)).astype(np.int64)
    # Plain lists, as single numbers of arrays are slow.
    left: list[int] = (stage.count - taken).tolist()
    free: list[int] = (stage.capacity - stage.used(starts)).tolist()
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        fits = (stage.amount[batch] <= np.array(free)[stage.row[batch]]).all(axis=1)
        batch = batch[fits & (np.array(left)[stage.option_class[batch]] > 0)]
        owners = stage.option_class[batch].tolist()
        most = (stage.limit[batch] - starts[batch]).tolist()
        charges = zip(stage.row[batch].tolist(), stage.amount[batch].tolist(), strict=True)
        for option, owner, limit, (rows, units) in zip(batch.tolist(), owners, most, charges, strict=True):
            members = min(left[owner], limit)
            for row, each in zip(rows, units, strict=True):
                if each * members > free[row]:
                    members = free[row] // each
                    if not members:
                        break
            if members > 0:
                starts[option] += members
                left[owner] -= members
                for row, each in zip(rows, units, strict=True):
                    free[row] -= each * members
    return Counts(starts, stage.objective(starts))


def _scarcity(stage: Stage) -> Floats:
    """Share of the free units that a member takes, summed over rows; never 0."""
    free = np.maximum(stage.capacity.astype(np.float64), 1e-9)
    taken: Floats = np.maximum((stage.amount / free[stage.row]).sum(axis=1), 1e-12)
    return taken
