"""The CP-SAT model of a stage: integer counts of members by option.

The model holds the options that the greedy uses, and of the others those that come first in the greedy's order, up to a
limit. CP-SAT improves on the greedy's solution. On a time-out its incumbent counts, which is never worse than that.

Where it wins: in small questions in which integers matter (docs/concepts/planner.md has a table). With
many small actions to a row next to nothing is left to it. In none of the simulated workloads did it change mean, p99,
longest wait or step by more than their seeds differ (docs/lab/2026-11-planner-ablation.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.question.instance import Integers
from callsheet.scheduler.planner.solvers.greedy import by_density
from callsheet.scheduler.planner.solvers.stage import SOLVED_GAP, Answer, Counts, Stage, Status

# The largest coefficient of the integer objective; costs are rounded to this precision.
OBJECTIVE_SCALE = 10_000_000
# With less than this left, CP-SAT would not get anywhere: half of it goes by until the model is built and read.
LEAST_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a round's solver.

    Attributes:
        seconds: Wall time of a round's solving, over all its stages; CP-SAT gets what the greedy leaves. 0 for no
            solver at all, then the greedy decides.
        deterministic: Seconds are CP-SAT's, and of its deterministic time, so that equal inputs give equal plans.
        max_options: Options in the model, beyond those that the greedy uses.
    """

    seconds: float = 0.008
    deterministic: bool = False
    max_options: int = 160

    def after(self, elapsed_s: float) -> Budget:
        """Returns the budget that is left after so many seconds outside CP-SAT."""
        return self if self.deterministic else replace(self, seconds=max(self.seconds - elapsed_s, 0.0))


class AssignmentModel:
    """A stage as a CP-SAT model.

    It is written as the message that the solver reads: to make an expression of each row takes longer than to solve it.
    OR-Tools is imported where the first one is made, by the thread that solves. It brings pandas, which takes half a
    second of CPU; a scheduler that starts need not wait for that.

    Attributes:
        options: Indexes of the options in it.
    """

    def __init__(self, stage: Stage, incumbent: Counts, max_options: int) -> None:
        from ortools.sat.python import cp_model

        self._stage = stage
        self._incumbent = incumbent
        self.options = contested(stage, incumbent, max_options)
        self._scale = OBJECTIVE_SCALE / max(float(stage.benefit.max(initial=0.0)), 1e-12)
        self._model = cp_model.CpModel()
        self._add_variables()
        for row in bounding_rows(stage, self.options):
            linear = self._model.proto.constraints.add().linear
            linear.vars.extend(row.columns)
            linear.coeffs.extend(row.amounts)
            linear.domain.extend([cp_model.INT_MIN, row.most])
        self._add_objective()

    def solve(self, budget: Budget, seed: int) -> Answer:
        """Returns the best solution, with a bound if all options of the stage are in the model."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        # Its handler would leave SIGINT at its default, and the next Ctrl-C would kill the process on the spot.
        parameters.catch_sigint_signal = False
        parameters.random_seed = seed
        parameters.relative_gap_limit = SOLVED_GAP / 10.0
        # Presolve and symmetry cost more than they bring at this size.
        parameters.cp_model_presolve = False
        parameters.symmetry_level = 0
        if budget.deterministic:
            parameters.max_deterministic_time = budget.seconds
        else:
            parameters.max_time_in_seconds = budget.seconds
        found = solver.solve(self._model)
        # Only the response tells deterministic time.
        spent = solver.response_proto.deterministic_time if budget.deterministic else solver.wall_time
        if found not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(self._incumbent, -float("inf"), Status.FALLBACK, spent)
        starts = np.zeros(len(self._stage.options), np.int64)
        starts[self.options] = solver.response_proto.solution
        counts = Counts(starts, self._stage.objective(starts))
        best = min(counts, self._incumbent, key=lambda each: each.objective)
        if len(self.options) < len(self._stage.options):
            return Answer(best, -float("inf"), Status.FEASIBLE, spent)
        # The integer objective can be wrong by half a unit for each member.
        rounding = 0.5 * float(self._stage.count.sum())
        bound = self._stage.baseline + (solver.best_objective_bound - rounding) / self._scale
        return Answer(best, bound, Status.OPTIMAL if found == cp_model.OPTIMAL else Status.FEASIBLE, spent)

    def _add_variables(self) -> None:
        proto = self._model.proto
        for limit in self._stage.limit[self.options].tolist():
            proto.variables.add().domain.extend([0, limit])
        hint = proto.solution_hint
        hint.vars.extend(range(len(self.options)))
        hint.values.extend(self._incumbent.starts[self.options].tolist())

    def _add_objective(self) -> None:
        gains = np.maximum(np.rint(self._stage.benefit[self.options] * self._scale), 1.0).astype(np.int64)
        objective = self._model.proto.objective
        objective.vars.extend(range(len(gains)))
        objective.coeffs.extend((-gains).tolist())


def contested(stage: Stage, incumbent: Counts, max_options: int) -> Integers:
    """The options worth deciding about: those in use, then the others in the greedy's order."""
    order = by_density(stage)
    used = incumbent.starts[order] > 0
    return np.sort(np.concatenate((order[used], order[~used][:max_options])))


class BoundingRow(NamedTuple):
    """``sum amounts[i] * x[columns[i]] <= most``."""

    most: int
    columns: list[int]
    amounts: list[int]


def bounding_rows(stage: Stage, options: Integers) -> Iterator[BoundingRow]:
    """The rows of a stage, and one for the members of each class; those that some options cannot fill are left out.

    Args:
        stage: The stage.
        options: Indexes of the options that are columns.
    """
    owner = len(stage.capacity) + stage.option_class[options]
    row = np.column_stack((stage.row[options], owner)).ravel()
    amount = np.column_stack((stage.amount[options], np.ones(len(options), np.int64))).ravel()
    column = np.repeat(np.arange(len(options)), stage.row.shape[1] + 1)
    most = np.concatenate((stage.capacity, stage.count))
    asked = np.bincount(row, amount * stage.limit[options][column], len(most))
    binding = (amount > 0) & (asked > most)[row]
    row, column, amount = row[binding], column[binding], amount[binding]
    order = np.argsort(row, kind="stable")
    numbers, first = np.unique(row[order], return_index=True)
    parts = zip(np.split(column[order], first[1:]), np.split(amount[order], first[1:]), strict=True)
    for number, (columns, amounts) in zip(numbers.tolist(), parts, strict=False):
        yield BoundingRow(int(most[number]), columns.tolist(), amounts.tolist())
