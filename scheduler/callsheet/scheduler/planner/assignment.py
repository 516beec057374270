"""The CP-SAT model of a stage: integer counts of members by option, and instances to bring in.

The relaxation says which options can matter; the model holds those, up to a limit, and CP-SAT improves on the best
solution known. On a time-out its incumbent counts, which is never worse than the warm start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from callsheet.scheduler.planner.greedy import Counts
from callsheet.scheduler.planner.instance import Integers
from callsheet.scheduler.planner.relaxation import Relaxation
from callsheet.scheduler.planner.stage import UNLIMITED, Stage
from ortools.sat.python import cp_model

# The largest coefficient of the integer objective; costs are rounded to this precision.
OBJECTIVE_SCALE = 10_000_000
SOLVED_GAP = 1e-4


class Status(Enum):
    """How a round was solved; BOUND means that the greedy or the relaxation proved its own solution good enough."""

    EMPTY = "empty"
    BOUND = "bound"
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a round's solver may spend.

    Attributes:
        seconds: Wall time of CP-SAT in a round, over all its stages; 0 for no solver at all, then the greedy decides.
        deterministic: Use the solver's deterministic time for it, so that equal inputs give equal plans.
        max_options: Options in the model; those with the worst reduced costs are left out.
    """

    seconds: float = 0.008
    deterministic: bool = False
    max_options: int = 160


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """CP-SAT's answer.

    Attributes:
        bound: For the whole stage, not only for the options in the model.
        seconds: What it took, in the time that the budget counts.
    """

    counts: Counts
    bound: float
    status: Status
    seconds: float


class AssignmentModel:
    """A stage as a CP-SAT model; `str` prints it with readable names."""

    def __init__(self, stage: Stage, relaxation: Relaxation, incumbent: Counts, max_options: int) -> None:
        self._stage = stage
        self._incumbent = incumbent
        self._options = contested(relaxation, incumbent, max_options)
        self._scale = OBJECTIVE_SCALE / max(float(stage.benefit.max(initial=0.0)), 1e-12)
        model = self._model = cp_model.CpModel()
        self._starts = [
            model.new_int_var(0, int(stage.limit[option]), self._name(option)) for option in self._options.tolist()
        ]
        self._brought_in = [model.new_int_var(0, each.limit, f"bring in {each.name}") for each in stage.set_ups]
        self._add_class_rows()
        self._add_resource_rows()
        self._add_objective()
        for variable, option in zip(self._starts, self._options.tolist(), strict=True):
            model.add_hint(variable, int(incumbent.starts[option]))
        for variable, times in zip(self._brought_in, incumbent.brought_in.tolist(), strict=True):
            model.add_hint(variable, times)

    def __str__(self) -> str:
        return str(self._model)

    @property
    def complete(self) -> bool:
        """Whether every option of the stage is in the model."""
        return len(self._options) == len(self._stage.options)

    def solve(self, budget: Budget, seed: int) -> Assigned:
        """Returns the best solution, with a bound for the options in the model."""
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
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
            return Assigned(self._incumbent, -float("inf"), Status.FALLBACK, spent)
        starts = np.zeros(len(self._stage.options), np.int64)
        starts[self._options] = [solver.value(variable) for variable in self._starts]
        brought = np.array([solver.value(variable) for variable in self._brought_in], np.int64)
        counts = Counts(starts, brought, self._stage.objective(starts, brought))
        bound = self._stage.baseline + (solver.best_objective_bound - 0.5 * self._rounding()) / self._scale
        status = Status.OPTIMAL if found == cp_model.OPTIMAL else Status.FEASIBLE
        return Assigned(min(counts, self._incumbent, key=lambda each: each.objective), bound, status, spent)

    def _rounding(self) -> float:
        """By how much the integer objective can be wrong, twice."""
        return float(self._stage.count.sum()) + sum(each.limit for each in self._stage.set_ups)

    def _name(self, option: int) -> str:
        return f"x[{self._stage.class_names[self._stage.option_class[option]]} | {self._stage.option_name(option)}]"

    def _add_class_rows(self) -> None:
        owners: dict[int, list[cp_model.IntVar]] = {}
        for variable, option in zip(self._starts, self._options.tolist(), strict=True):
            owners.setdefault(int(self._stage.option_class[option]), []).append(variable)
        for owner, variables in owners.items():
            row = self._model.add(cp_model.LinearExpr.sum(variables) <= int(self._stage.count[owner]))
            row.with_name(f"members of {self._stage.class_names[owner]}")

    def _add_resource_rows(self) -> None:
        variables: dict[int, list[cp_model.IntVar]] = {}
        units: dict[int, list[int]] = {}
        for variable, option in zip(self._starts, self._options.tolist(), strict=True):
            for row, amount in self._stage.charges(option):
                variables.setdefault(row, []).append(variable)
                units.setdefault(row, []).append(amount)
        for variable, each in zip(self._brought_in, self._stage.set_ups, strict=True):
            for row, amount in (*each.charges, (each.provides[0], -each.provides[1])):
                variables.setdefault(row, []).append(variable)
                units.setdefault(row, []).append(amount)
        for row, members in variables.items():
            capacity = int(self._stage.capacity[row])
            if capacity < UNLIMITED:
                bounded = cp_model.LinearExpr.weighted_sum(members, units[row]) <= capacity
                self._model.add(bounded).with_name(self._stage.row_names[row])

    def _add_objective(self) -> None:
        gains = [max(round(float(self._stage.benefit[option]) * self._scale), 1) for option in self._options]
        costs = [round(float(cost) * self._scale) for cost in self._stage.set_up_cost]
        self._model.minimize(
            cp_model.LinearExpr.weighted_sum([*self._starts, *self._brought_in], [-gain for gain in gains] + costs)
        )


def contested(relaxation: Relaxation, incumbent: Counts, max_options: int) -> Integers:
    """The options worth deciding about: those in use, then by reduced cost."""
    order = np.lexsort((relaxation.reduced_cost, incumbent.starts == 0))
    return np.sort(order[: max(max_options, int((incumbent.starts > 0).sum()))])


def assign(stage: Stage, relaxation: Relaxation, incumbent: Counts, budget: Budget, seed: int) -> Assigned:
    """Improves on a solution with CP-SAT, within a budget."""
    model = AssignmentModel(stage, relaxation, incumbent, budget.max_options)
    found = model.solve(budget, seed)
    # Options that were left out may be worth something, so only the whole model's bound counts.
    proved = max(relaxation.bound, found.bound) if model.complete else relaxation.bound
    return replace(found, bound=min(proved, found.counts.objective))
