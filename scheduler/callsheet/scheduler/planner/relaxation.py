"""The linear relaxation of a stage: a bound on every solution, and the options among which a solver need choose.

Solved by column generation with GLOP. Only a few options are ever good, so the master problem holds those found so far;
its dual values are the prices of rows, and options that beat them join it. At any moment
``objective of the master + sum_classes count * (most negative reduced cost)`` is a bound (Lagrange), so a relaxation
that is cut short still tells the truth. See Desrosiers and Luebbecke, "A Primer in Column Generation" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from callsheet.scheduler.planner.greedy import Counts, fill
from callsheet.scheduler.planner.instance import Floats, Integers
from callsheet.scheduler.planner.stage import Stage
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

MAX_PASSES = 12
COLUMNS_PER_PASS = 96
# Reduced costs smaller than this share of the largest benefit are noise.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """What the relaxation tells of a stage.

    Attributes:
        bound: No solution costs less.
        reduced_cost: Of each option under the prices found; the larger, the less likely it is used, shape (options,).
        price: Dual value of each row in weighted seconds a unit, at most 0, shape (rows,).
        rounded: The relaxation's solution rounded down and filled up.
    """

    bound: float
    reduced_cost: Floats
    price: Floats
    rounded: Counts


def relax(stage: Stage, warm_start: Counts) -> Relaxation:
    """Solves the relaxation, beginning with the options of a solution."""
    master = _Master(stage)
    master.add(_first_columns(stage, warm_start))
    scale = float(stage.benefit.max(initial=1.0))
    best = None
    for _ in range(MAX_PASSES):
        prices = master.solve()
        reduced = -stage.benefit - (stage.amount * prices.row[stage.row]).sum(axis=1) - prices.owner[stage.option_class]
        bound = master.objective + _slack(stage, np.where(master.member, 0.0, reduced))
        if best is None or bound > best[0]:
            best = (bound, reduced, prices.row)
        entering = np.flatnonzero((reduced < -TOLERANCE * scale) & ~master.member)
        if not len(entering):
            break
        master.add(entering[np.argsort(reduced[entering], kind="stable")][:COLUMNS_PER_PASS])
    if best is None:
        raise AssertionError("a relaxation has at least one pass")
    rounded = _round(stage, master, best[1])
    return Relaxation(best[0] + stage.baseline, best[1], best[2], rounded)


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Dual values: of rows, and of the classes' counts."""

    row: Floats
    owner: Floats


class _Master:
    """The linear program over the options found so far, relative to starting nothing."""

    def __init__(self, stage: Stage) -> None:
        self.member = np.zeros(len(stage.options), np.bool_)
        self.objective = 0.0
        self._stage = stage
        solver = self._solver = pywraplp.Solver.CreateSolver("GLOP")
        infinity = solver.infinity()
        self._rows = [solver.Constraint(-infinity, float(units)) for units in stage.capacity.tolist()]
        self._owners = [solver.Constraint(-infinity, float(count)) for count in stage.count.tolist()]
        self._goal = solver.Objective()
        self._goal.SetMinimization()
        self._columns: list[tuple[int, pywraplp.Variable]] = []
        self._set_ups = [self._set_up_variable(index) for index in range(len(stage.set_ups))]

    def _set_up_variable(self, index: int) -> pywraplp.Variable:
        each = self._stage.set_ups[index]
        variable = self._solver.NumVar(0.0, float(each.limit), "")
        self._goal.SetCoefficient(variable, float(self._stage.set_up_cost[index]))
        coefficients = dict(each.charges)
        coefficients[each.provides[0]] = coefficients.get(each.provides[0], 0) - each.provides[1]
        for row, units in coefficients.items():
            self._rows[row].SetCoefficient(variable, float(units))
        return variable

    def add(self, options: Integers) -> None:
        """Lets options join."""
        stage = self._stage
        for option in options.tolist():
            variable = self._solver.NumVar(0.0, float(stage.limit[option]), "")
            self._goal.SetCoefficient(variable, -float(stage.benefit[option]))
            for row, units in stage.charges(option):
                self._rows[row].SetCoefficient(variable, float(units))
            self._owners[stage.option_class[option]].SetCoefficient(variable, 1.0)
            self._columns.append((option, variable))
        self.member[options] = True

    def solve(self) -> _Prices:
        """Solves and returns the dual values."""
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            raise ArithmeticError(f"the relaxation of {len(self._columns)} options has no optimum")
        self.objective = self._goal.Value()
        row = np.array([each.dual_value() for each in self._rows])
        owner = np.array([each.dual_value() for each in self._owners])
        return _Prices(np.minimum(row, 0.0), np.minimum(owner, 0.0))

    def whole(self) -> tuple[Integers, Integers]:
        """The solution rounded down: members by option, and instances rounded up where they are used."""
        starts = np.zeros(len(self.member), np.int64)
        for option, variable in self._columns:
            starts[option] = int(variable.solution_value() + 1e-6)
        brought = [int(variable.solution_value() + 1e-6) for variable in self._set_ups]
        return starts, np.array(brought, np.int64)


def _first_columns(stage: Stage, warm_start: Counts) -> Integers:
    """The options of a solution, and one of every class's best."""
    order = np.lexsort((-stage.benefit, stage.option_class))
    _, first = np.unique(stage.option_class[order], return_index=True)
    return np.union1d(order[first], np.flatnonzero(warm_start.starts > 0))


def _slack(stage: Stage, reduced: Floats) -> float:
    """How far a bound lies below the master's objective: what its missing options could still gain."""
    worst = np.zeros(len(stage.count))
    np.minimum.at(worst, stage.option_class, reduced)
    return float((worst * stage.count).sum())


def _round(stage: Stage, master: _Master, reduced: Floats) -> Counts:
    starts, brought_in = master.whole()
    if not stage.feasible(starts, brought_in):
        starts, brought_in = np.zeros_like(starts), np.zeros_like(brought_in)
    floor = Counts(starts, brought_in, stage.objective(starts, brought_in))
    return fill(stage, np.argsort(reduced, kind="stable"), floor)
