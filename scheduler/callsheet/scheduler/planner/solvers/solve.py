"""A planning instance solved: stages in order, each by the least machinery that is proved good enough.

Greedy first: where every member gets its best option nothing can be better. Then the linear relaxation with rounding,
whose bound often proves the rest. What remains is CP-SAT's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Option, PlanningInstance
from callsheet.scheduler.planner.question.price import OptionCosts, option_costs
from callsheet.scheduler.planner.solvers.cp_sat import LEAST_SECONDS, Budget, CpSat
from callsheet.scheduler.planner.solvers.greedy import Greedy
from callsheet.scheduler.planner.solvers.relaxation import LinearRelaxation
from callsheet.scheduler.planner.solvers.solver import Answer, Solver, Status
from callsheet.scheduler.planner.solvers.stage import Leftovers, Stage, make_stage


@dataclass(frozen=True, slots=True)
class Started:
    """So many members of a class with one of its options."""

    class_index: int
    option: Option
    members: int


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


_HARDNESS = (Status.EMPTY, Status.BOUND, Status.OPTIMAL, Status.FEASIBLE, Status.FALLBACK)


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
    return books.solution()


def solve_stage(stage: Stage, budget: Budget, seed: int, elapsed_s: Callable[[], float] = lambda: 0.0) -> Answer:
    """Solves one stage; `elapsed_s` tells what the round's solving has taken so far beside CP-SAT."""
    if not len(stage.options):
        return Answer.nothing(stage, Status.EMPTY)
    answer = Answer.nothing(stage)
    for solver in _solvers(budget, seed, elapsed_s):
        answer = solver.solve(stage, answer)
        if answer.status is Status.BOUND:
            break
    return answer


def _solvers(budget: Budget, seed: int, elapsed_s: Callable[[], float]) -> Iterator[Solver]:
    """From the cheapest to the dearest: who proves his answer good enough spares the others."""
    yield Greedy()
    if budget.seconds > 0.0:
        relaxation = LinearRelaxation()
        yield relaxation
        yield CpSat(relaxation, budget, seed, elapsed_s)


class _Books:
    """What is decided and what is left of an instance while its stages are solved."""

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
            option = stage.every_option[int(stage.options[position])]
            self._started.append(Started(owner, option, int(counts.starts[position])))
        self._objective -= stage.baseline - counts.objective
        self._bound -= stage.baseline - solved.bound
        self._status = max(self._status, solved.status, key=_HARDNESS.index)

    def solution(self) -> Solution:
        """All stages together."""
        gains = self._costs.leave[self._costs.option_class] - self._costs.cost
        return Solution(tuple(self._started), self._objective, self._bound, self._status, gains)
