"""The linear relaxation of a stage: a bound on every solution, and the options among which a solver need choose.

Solved by column generation with GLOP. Only a few options are ever good, so the master problem holds those found so far;
its dual values are the prices of rows, and options that beat them join it. At any moment
``objective of the master + sum_classes count * (most negative reduced cost)`` is a bound (Lagrange), so a relaxation
that is cut short still tells the truth. See Desrosiers and Luebbecke, "A Primer in Column Generation" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers
from callsheet.scheduler.planner.solvers.greedy import fill
from callsheet.scheduler.planner.solvers.linear_rows import linear_rows
from callsheet.scheduler.planner.solvers.solver import Answer, Counts, Status
from callsheet.scheduler.planner.solvers.stage import Stage
from ortools.linear_solver import linear_solver_pb2, pywraplp  # type: ignore[import-untyped]

MAX_PASSES = 12
COLUMNS_PER_PASS = 96
# So many options are all taken at once: solving with them takes less than another pass.
FEW_OPTIONS = 600
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


class LinearRelaxation:
    """The relaxation as a solver: its solution is rounded, and its bound proves that or another one good enough.

    Attributes:
        found: What it told of the stage that it solved last; None if it found no optimum.
    """

    def __init__(self) -> None:
        """Starts with nothing found."""
        self.found: Relaxation | None = None

    def solve(self, stage: Stage, incumbent: Answer) -> Answer:
        """See `Solver.solve`."""
        try:
            self.found = relax(stage, incumbent.counts)
        except ArithmeticError:
            self.found = None
            return incumbent
        best = min(incumbent.counts, self.found.rounded, key=lambda counts: counts.objective)
        bound = min(max(incumbent.bound, self.found.bound), best.objective)
        return Answer(best, bound, Status.FEASIBLE).judged(stage)


def relax(stage: Stage, warm_start: Counts) -> Relaxation:
    """Solves the relaxation, beginning with the options of a solution, or with all where they are few."""
    scale = float(stage.benefit.max(initial=1.0))
    columns = _first_columns(stage, warm_start)
    best = None
    for _ in range(MAX_PASSES):
        optimum = _solve_over(stage, columns)
        reduced = -stage.benefit - (stage.amount * optimum.row[stage.row]).sum(axis=1)
        reduced -= optimum.owner[stage.option_class]
        missing = np.ones(len(stage.options), np.bool_)
        missing[columns] = False
        bound = optimum.objective + _slack(stage, np.where(missing, reduced, 0.0))
        if best is None or bound > best[0]:
            best = (bound, reduced, optimum.row)
        entering = np.flatnonzero(missing & (reduced < -TOLERANCE * scale))
        if not len(entering):
            break
        joining = entering[np.argsort(reduced[entering], kind="stable")][:COLUMNS_PER_PASS]
        columns = np.concatenate((columns, joining))
    if best is None:
        raise AssertionError("a relaxation has at least one pass")
    rounded = _round(stage, optimum, best[1])
    return Relaxation(best[0] + stage.baseline, best[1], best[2], rounded)


@dataclass(frozen=True, slots=True, eq=False)
class _Optimum:
    """Of the linear program over some options.

    Attributes:
        objective: Relative to starting nothing.
        starts: Members by option, shape (options,).
        row: Dual value of each row, shape (rows,).
        owner: Dual value of each class's count, shape (classes,).
    """

    objective: float
    starts: Floats
    row: Floats
    owner: Floats


def _solve_over(stage: Stage, options: Integers) -> _Optimum:
    """Solves the linear program over some options.

    It goes to the solver as one message: to add coefficients one by one takes longer than to solve it.

    Raises:
        ArithmeticError: The solver found no optimum.
    """
    model = linear_solver_pb2.MPModelProto()
    bounds = zip(stage.limit[options].tolist(), stage.benefit[options].tolist(), strict=True)
    for limit, benefit in bounds:
        model.variable.add(lower_bound=0.0, upper_bound=limit, objective_coefficient=-benefit)
    rows = list(linear_rows(stage, options))
    for row in rows:
        model.constraint.add(lower_bound=-inf, upper_bound=row.most, var_index=row.columns, coefficient=row.amounts)
    glop = linear_solver_pb2.MPModelRequest.GLOP_LINEAR_PROGRAMMING
    response = linear_solver_pb2.MPSolutionResponse()
    pywraplp.Solver.SolveWithProto(linear_solver_pb2.MPModelRequest(model=model, solver_type=glop), response)
    if response.status != linear_solver_pb2.MPSOLVER_OPTIMAL:
        raise ArithmeticError(f"the relaxation of {len(options)} options has no optimum")
    starts = np.zeros(len(stage.options))
    starts[options] = response.variable_value
    dual = np.zeros(len(stage.capacity) + len(stage.count))
    dual[[row.number for row in rows]] = np.minimum(response.dual_value, 0.0)
    prices = np.split(dual, [len(stage.capacity)])
    return _Optimum(response.objective_value, starts, *prices)


def _first_columns(stage: Stage, warm_start: Counts) -> Integers:
    """All options where they are few; otherwise those of a solution, and one of every class's best."""
    if len(stage.options) <= FEW_OPTIONS:
        return np.arange(len(stage.options))
    order = np.lexsort((-stage.benefit, stage.option_class))
    _, first = np.unique(stage.option_class[order], return_index=True)
    return np.union1d(order[first], np.flatnonzero(warm_start.starts > 0))


def _slack(stage: Stage, reduced: Floats) -> float:
    """How far a bound lies below the master's objective: what its missing options could still gain."""
    worst = np.zeros(len(stage.count))
    np.minimum.at(worst, stage.option_class, reduced)
    return float((worst * stage.count).sum())


def _round(stage: Stage, optimum: _Optimum, reduced: Floats) -> Counts:
    """Rounds members down, and fills up in the order of reduced costs."""
    starts = (optimum.starts + 1e-6).astype(np.int64)
    if not stage.feasible(starts):
        starts = np.zeros_like(starts)
    floor = Counts(starts, stage.objective(starts))
    return fill(stage, np.argsort(reduced, kind="stable"), floor)
