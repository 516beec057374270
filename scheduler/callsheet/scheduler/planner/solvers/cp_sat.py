"""The CP-SAT model of a stage: integer counts of members by option.

The relaxation says which options can matter; the model holds those, up to a limit, and CP-SAT improves on the best
solution known. On a time-out its incumbent counts, which is never worse than the warm start.

Where it wins: in small questions in which integers matter. The tests have three: chunks that only together fill a
resource (the greedy and the rounded relaxation reach 0.78 of the possible gain), several scarce resources (0.60) and
fair shares that the densest option does not divide (0.89). With many small actions to a row the relaxation proves its
own plan, and CP-SAT is not asked: of 205 contested questions of a distillation step it was asked 24 times, and found a
better plan 17 times. In none of five simulated workloads did that change mean, p99, longest wait or step by more than
their seeds differ (docs/lab/2026-11-planner-ablation.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from callsheet.scheduler.planner.question.instance import Integers
from callsheet.scheduler.planner.solvers.linear_rows import linear_rows
from callsheet.scheduler.planner.solvers.relaxation import LinearRelaxation, Relaxation
from callsheet.scheduler.planner.solvers.solver import SOLVED_GAP, Answer, Counts, Status
from callsheet.scheduler.planner.solvers.stage import Stage
from ortools.sat.python import cp_model

# The largest coefficient of the integer objective; costs are rounded to this precision.
OBJECTIVE_SCALE = 10_000_000
# With less than this left, CP-SAT would not get anywhere: half of it goes by until the model is built and read.
LEAST_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Budget:
    """What a round's solver may spend.

    Attributes:
        seconds: Wall time of a round's solving, over all its stages. CP-SAT gets what greedy and relaxation leave.
            0 for no solver at all, then the greedy decides.
        deterministic: Seconds are CP-SAT's, and of its deterministic time, so that equal inputs give equal plans.
        max_options: Options in the model; those with the worst reduced costs are left out.
    """

    seconds: float = 0.008
    deterministic: bool = False
    max_options: int = 160

    def after(self, elapsed_s: float) -> Budget:
        """What is left of it after so long beside CP-SAT."""
        return self if self.deterministic else replace(self, seconds=max(self.seconds - elapsed_s, 0.0))


class AssignmentModel:
    """A stage as a CP-SAT model.

    It is written as the message that the solver reads: to make an expression of each row takes longer than to solve it.

    Attributes:
        options: Indexes of the options in it.
    """

    def __init__(self, stage: Stage, relaxation: Relaxation, incumbent: Counts, max_options: int) -> None:
        self._stage = stage
        self._incumbent = incumbent
        self.options = contested(relaxation, incumbent, max_options)
        self._scale = OBJECTIVE_SCALE / max(float(stage.benefit.max(initial=0.0)), 1e-12)
        self._model = cp_model.CpModel()
        self._rows = list(linear_rows(stage, self.options))
        self._add_variables()
        self._add_rows()
        self._add_objective()

    def solve(self, budget: Budget, seed: int) -> Answer:
        """Returns the best solution, with a bound for the options in the model."""
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
        # The integer objective can be wrong by half a unit for each member.
        rounding = 0.5 * float(self._stage.count.sum())
        bound = self._stage.baseline + (solver.best_objective_bound - rounding) / self._scale
        status = Status.OPTIMAL if found == cp_model.OPTIMAL else Status.FEASIBLE
        return Answer(min(counts, self._incumbent, key=lambda each: each.objective), bound, status, spent)

    def _add_variables(self) -> None:
        proto = self._model.proto
        for limit in self._stage.limit[self.options].tolist():
            proto.variables.add().domain.extend([0, limit])
        hint = proto.solution_hint
        hint.vars.extend(range(len(self.options)))
        hint.values.extend(self._incumbent.starts[self.options].tolist())

    def _add_rows(self) -> None:
        proto = self._model.proto
        for row in self._rows:
            linear = proto.constraints.add().linear
            linear.vars.extend(row.columns)
            linear.coeffs.extend(row.amounts)
            linear.domain.extend([cp_model.INT_MIN, row.most])

    def _add_objective(self) -> None:
        gains = np.maximum(np.rint(self._stage.benefit[self.options] * self._scale), 1.0).astype(np.int64)
        objective = self._model.proto.objective
        objective.vars.extend(range(len(gains)))
        objective.coeffs.extend((-gains).tolist())


def contested(relaxation: Relaxation, incumbent: Counts, max_options: int) -> Integers:
    """The options worth deciding about: those in use, then those that a better solution could have, the likely first.

    A solution with an option costs at least the bound and the option's reduced cost (reduced-cost fixing; see Wolsey,
    "Integer Programming").
    """
    used = incumbent.starts > 0
    could = np.flatnonzero(used | (relaxation.reduced_cost < incumbent.objective - relaxation.bound))
    order = could[np.lexsort((relaxation.reduced_cost[could], ~used[could]))]
    return np.sort(order[: max(max_options, int(used.sum()))])


class CpSat:
    """CP-SAT as a solver, within what is left of a budget once the model is built.

    It needs what the relaxation found of the same stage, and leaves an answer alone that is proved, or without time.
    """

    def __init__(
        self,
        relaxation: LinearRelaxation,
        budget: Budget,
        seed: int,
        elapsed_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Starts a solver for one round.

        Args:
            relaxation: Asked about each stage before.
            budget: What may be spent.
            seed: Of the solver.
            elapsed_s: What the round's solving has taken so far beside CP-SAT, in seconds.
        """
        self._relaxation = relaxation
        self._budget = budget
        self._seed = seed
        self._elapsed_s = elapsed_s

    def solve(self, stage: Stage, incumbent: Answer) -> Answer:
        """See `Solver.solve`."""
        relaxation = self._relaxation.found
        if relaxation is None or self._budget.after(self._elapsed_s()).seconds <= LEAST_SECONDS:
            return incumbent
        model = AssignmentModel(stage, relaxation, incumbent.counts, self._budget.max_options)
        found = model.solve(self._budget.after(self._elapsed_s()), self._seed)
        # A solution has an option that was left out, or the model's bound holds for it.
        left_out = np.delete(relaxation.reduced_cost, model.options).min(initial=np.inf)
        proved = min(found.bound, relaxation.bound + max(float(left_out), 0.0))
        return replace(found, bound=min(max(proved, relaxation.bound), found.counts.objective))
