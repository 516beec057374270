"""A planning instance solved: stages in order, each by the least machinery that is proved good enough.

Greedy first: where every member gets its best option nothing can be better. What remains is CP-SAT's. Units that both
leave idle, since they would look too dear, go to whoever gains by them for himself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Option, PlanningInstance
from callsheet.scheduler.planner.question.price import OptionCosts, option_costs
from callsheet.scheduler.planner.solvers.cp_sat import LEAST_SECONDS, AssignmentModel, Budget
from callsheet.scheduler.planner.solvers.greedy import by_density, fill, greedy
from callsheet.scheduler.planner.solvers.stage import Answer, Counts, Leftovers, Stage, Status, make_stage

# Where so many members start, one more or less matters next to nothing, and CP-SAT finds none in its time.
MOST_CONTESTED = 64
_HARDNESS = (Status.EMPTY, Status.BOUND, Status.OPTIMAL, Status.FEASIBLE, Status.FALLBACK)


@dataclass(frozen=True, slots=True)
class Started:
    """So many members of a class with one of its options.

    Attributes:
        gain: What starting one of them saves, in weighted seconds.
    """

    class_index: int
    option: Option
    members: int
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Counts for an instance.

    Attributes:
        started: What to start; the order of stages, then of classes.
        objective: Cost in weighted seconds, members left queued included.
        bound: No solution of these stages costs less.
        status: How the hardest stage was solved.
        gains: What starting one member saves, for every option of the instance, shape (options,).
    """

    started: tuple[Started, ...]
    objective: float
    bound: float
    status: Status
    gains: Floats

    @property
    def gap(self) -> float:
        """(objective - bound) / |bound|."""
        return (self.objective - self.bound) / max(abs(self.bound), 1e-12)


def solve(
    instance: PlanningInstance, budget: Budget, seed: int = 0, stopwatch: Callable[[], float] = lambda: 0.0
) -> Solution:
    """Decides how many members of each class start by which option.

    Args:
        instance: The round's question.
        budget: What may be spent on all stages together.
        seed: Of the solver.
        stopwatch: Seconds, by which what is not CP-SAT's time counts; without, it counts as nothing.
    """
    began = stopwatch()
    spent_s = 0.0  # by CP-SAT, in the time that the budget counts; what is left of the budget has it out already

    def elapsed_s() -> float:
        return stopwatch() - began - spent_s

    if not instance.classes:
        return Solution((), 0.0, 0.0, Status.EMPTY, np.zeros(0))
    books = _Books(instance, option_costs(instance))
    left = budget
    for stage in books.stages():
        solved = solve_stage(stage, left, seed, elapsed_s)
        books.take(stage, solved)
        spent_s += solved.seconds
        left = replace(left, seconds=max(left.seconds - solved.seconds, min(left.seconds, LEAST_SECONDS)))
    books.use_idle_units()
    return books.solution()


def solve_stage(stage: Stage, budget: Budget, seed: int, elapsed_s: Callable[[], float] = lambda: 0.0) -> Answer:
    """Solves one stage; `elapsed_s` tells what the round's solving has taken so far beside CP-SAT."""
    if not len(stage.options):
        return Answer(Counts(np.zeros(0, np.int64), stage.baseline), stage.baseline, Status.EMPTY)
    first = greedy(stage)
    proved = first.status is Status.BOUND or first.counts.starts.sum() > MOST_CONTESTED
    if proved or budget.after(elapsed_s()).seconds <= LEAST_SECONDS:
        return first
    model = AssignmentModel(stage, first.counts, budget.max_options)
    found = model.solve(budget.after(elapsed_s()), seed)
    # What CP-SAT had no time for, or no column, may still fit.
    counts = fill(stage, by_density(stage), found.counts)
    return replace(found, counts=counts, bound=min(max(first.bound, found.bound), counts.objective))


class _Books:
    """Decisions about an instance, and the rest of it, while its stages are solved."""

    def __init__(self, instance: PlanningInstance, costs: OptionCosts) -> None:
        self._instance = instance
        self._costs = costs
        self._left = Leftovers.of(instance)
        self._classes: list[int] = []
        self._started: list[Started] = []
        counts = np.array([each.count for each in instance.classes], np.float64)
        self._objective = self._bound = float((counts * costs.leave).sum())
        self._status = Status.EMPTY

    def stages(self) -> Iterator[Stage]:
        """The stages in order; each is made from what the ones before it left."""
        for priority in sorted({each.priority for each in self._instance.classes}):
            members = [index for index, each in enumerate(self._instance.classes) if each.priority == priority]
            several = len({self._instance.classes[index].job for index in members}) > 1
            for fair in (True, False) if several else (False,):
                self._classes = [index for index in members if self._left.waiting[index] > 0]
                if self._classes and self._left.cap > 0:
                    yield make_stage(self._instance, self._costs, self._classes, self._left, fair=fair)

    def take(self, stage: Stage, solved: Answer) -> None:
        """Books the solution of the stage that `stages` gave last."""
        counts = solved.counts
        self._left.take(stage, counts.starts, self._classes)
        for position in np.flatnonzero(counts.starts).tolist():
            owner = self._classes[int(stage.option_class[position])]
            index = int(stage.options[position])
            option = self._instance.classes[owner].block.options[index - int(self._costs.table.first[owner])]
            gain = float(self._costs.leave[owner] - self._costs.cost[index])
            self._started.append(Started(owner, option, int(counts.starts[position]), gain))
        self._objective -= stage.baseline - counts.objective
        self._bound -= stage.baseline - solved.bound
        self._status = max(self._status, solved.status, key=_HARDNESS.index)

    def use_idle_units(self) -> None:
        """Starts members on units that are free at once though it would pay for all together to keep these.

        What waits for a node that is not free enough yet makes its units dear. Nobody could use them now but those that
        gain by it for themselves: who would end later that way than by waiting goes on waiting.
        """
        costs = self._costs
        selfish = np.where(costs.table.setup_s > 0.0, np.inf, costs.own)
        dear = (selfish < costs.leave[costs.option_class]) & (costs.cost >= costs.leave[costs.option_class])
        waiting = self._left.waiting > 0
        if self._left.cap <= 0 or not (dear & waiting[costs.option_class]).any():
            return
        self._classes = np.flatnonzero(waiting).tolist()
        stage = make_stage(self._instance, replace(costs, cost=selfish), self._classes, self._left, fair=False)
        if len(stage.options):
            counts = greedy(stage).counts
            paid = costs.cost[stage.options] - costs.leave[costs.option_class[stage.options]]
            cost = stage.baseline + float(paid @ counts.starts)
            self.take(stage, Answer(Counts(counts.starts, cost), stage.baseline, Status.BOUND))

    def solution(self) -> Solution:
        """All stages together."""
        gains = self._costs.leave[self._costs.option_class] - self._costs.cost
        return Solution(tuple(self._started), self._objective, self._bound, self._status, gains)
