"""What a solver is: it is given a stage and the best answer so far, and gives one that is no worse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np
from callsheet.scheduler.planner.question.instance import Integers
from callsheet.scheduler.planner.solvers.stage import Stage

# An answer this close to its bound, as a share of what could be gained at all, is as good as the best.
SOLVED_GAP = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """A feasible solution of a stage.

    Attributes:
        starts: Members to start by option, shape (options,).
        objective: Its cost.
    """

    starts: Integers
    objective: float


class Status(Enum):
    """How a round was solved; BOUND means that the greedy or the relaxation proved its own solution good enough."""

    EMPTY = "empty"
    BOUND = "bound"
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A stage's best solution so far.

    Attributes:
        counts: The solution.
        bound: No solution of the stage costs less.
        status: How it was found.
        seconds: What CP-SAT spent on it, in the time that the budget counts.
    """

    counts: Counts
    bound: float
    status: Status
    seconds: float = 0.0

    @staticmethod
    def nothing(stage: Stage, status: Status = Status.FALLBACK) -> Answer:
        """Starts nobody and knows no bound, but for a stage without options."""
        bound = -float("inf") if len(stage.options) else stage.baseline
        return Answer(Counts(np.zeros(len(stage.options), np.int64), stage.baseline), bound, status)

    def judged(self, stage: Stage) -> Answer:
        """The same, with a status that says so if the bound proves it good enough."""
        possible = max(stage.baseline - self.bound, 1e-12)
        proved = self.counts.objective - self.bound <= SOLVED_GAP * possible
        return replace(self, status=Status.BOUND) if proved else self


class Solver(Protocol):
    """Improves on an answer."""

    def solve(self, stage: Stage, incumbent: Answer) -> Answer:
        """Counts that cost no more than the incumbent's, and a bound that is no lower."""
