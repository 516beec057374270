"""The planner's solvers on random tiny instances: feasible, within the stated gap of the optimum, bounds that hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from callsheet.scheduler.planner.question.instance import Integers, PlanningInstance
from callsheet.scheduler.planner.question.price import option_costs
from callsheet.scheduler.planner.solvers.cp_sat import AssignmentModel, Budget, bounding_rows
from callsheet.scheduler.planner.solvers.greedy import greedy, unbounded_optimum
from callsheet.scheduler.planner.solvers.solve import Solution, solve, solve_stage
from hypothesis import given, settings

from tests.support.planning_instances import instances, one_stage, optimum, optimum_of_all_options
from tests.support.samples import examples

AMPLE = Budget(seconds=1.0, deterministic=True)
SLACK = 1e-6
# Of what could be gained; also what docs/concepts/planner.md says that CP-SAT proves.
STATED_GAP = 1e-4


@settings(max_examples=examples(150))
@given(instances())
def test_a_solved_stage_is_feasible_and_within_the_stated_gap_of_the_optimum(instance: PlanningInstance) -> None:
    stage = one_stage(instance)
    solved = solve_stage(stage, AMPLE, seed=1)
    best = optimum(stage)
    assert stage.feasible(solved.counts.starts)
    assert solved.counts.objective == pytest.approx(stage.objective(solved.counts.starts), abs=SLACK)
    allowed = STATED_GAP * (stage.baseline - solved.bound) + SLACK
    assert best - SLACK <= solved.counts.objective <= best + allowed
    assert solved.bound <= best + SLACK


@settings(max_examples=examples(150))
@given(instances())
def test_greedy_and_model_each_keep_their_promise(instance: PlanningInstance) -> None:
    stage = one_stage(instance)
    best = optimum(stage)
    start = greedy(stage).counts
    assert stage.feasible(start.starts)
    assert start.objective >= best - SLACK
    assert unbounded_optimum(stage) <= best + SLACK
    if not len(stage.options):
        return
    for most in (AMPLE.max_options, 1):
        assigned = AssignmentModel(stage, start, most).solve(AMPLE, seed=1)
        assert stage.feasible(assigned.counts.starts)
        assert assigned.counts.objective <= start.objective + SLACK
        assert assigned.bound <= best + SLACK


@settings(max_examples=examples(100))
@given(instances())
def test_what_a_stage_leaves_out_is_in_no_solution(instance: PlanningInstance) -> None:
    """Options that no room is left for, and members beyond what single rows allow of one option."""
    assert optimum(one_stage(instance)) == pytest.approx(optimum_of_all_options(instance), abs=SLACK)


@settings(max_examples=examples(100))
@given(instances())
def test_rows_that_solvers_do_not_get_bind_nobody(instance: PlanningInstance) -> None:
    stage = one_stage(instance, fair=True)
    options = np.arange(len(stage.options))
    rows = [(row.most, list(zip(row.columns, row.amounts, strict=True))) for row in bounding_rows(stage, options)]
    for starts in itertools.product(*(range(int(limit) + 1) for limit in stage.limit)):
        kept = all(sum(starts[at] * units for at, units in charges) <= most for most, charges in rows)
        assert kept == stage.feasible(np.array(starts, np.int64))


@settings(max_examples=examples(100))
@given(instances())
def test_all_stages_together_keep_every_bound_of_the_instance(instance: PlanningInstance) -> None:
    solution = solve(instance, AMPLE, seed=1)
    used = np.zeros(len(instance.resources), np.int64)
    members = [0] * len(instance.classes)
    for each in solution.started:
        assert each.members > 0
        members[each.class_index] += each.members
        for index, units in each.option.charges:
            used[index] += units * each.members
        place = [option is each.option for option in instance.classes[each.class_index].block.options].index(True)
        by_option = [
            other.members
            for other in solution.started
            if other.class_index == each.class_index and other.option is each.option
        ]
        assert sum(by_option) <= instance.classes[each.class_index].limits[place]
    assert all(count <= each.count for count, each in zip(members, instance.classes, strict=True))
    assert all(count <= each.free for count, each in zip(used, instance.resources, strict=True))
    assert sum(members) <= instance.dispatch_cap
    assert solution.bound <= solution.objective + SLACK
    assert _left_though_it_fits(instance, solution, used) <= STATED_GAP * _most_to_gain(instance) + SLACK


def _left_though_it_fits(instance: PlanningInstance, solution: Solution, used: Integers) -> float:
    """The most that one more member would gain by an option for which there is room."""
    gains = iter(solution.gains.tolist())
    dispatched = sum(each.members for each in solution.started)
    best = 0.0
    for index, each in enumerate(instance.classes):
        mine = [other for other in solution.started if other.class_index == index]
        for option, limit in zip(each.block.options, each.limits.tolist(), strict=True):
            gain = next(gains)
            fits = all(used[row] + units <= instance.resources[row].free for row, units in option.charges)
            more = sum(other.members for other in mine) < each.count and dispatched < instance.dispatch_cap
            by_it = sum(other.members for other in mine if other.option is option)
            best = max(best, gain if fits and more and by_it < limit else 0.0)
    return best


def _most_to_gain(instance: PlanningInstance) -> float:
    """What all members would gain by their best options."""
    costs = option_costs(instance)
    gains = costs.leave[costs.option_class] - costs.cost
    best = [float(gains[costs.option_class == index].max()) for index in range(len(instance.classes))]
    return sum(each.count * gain for each, gain in zip(instance.classes, best, strict=True))


@settings(max_examples=examples(60))
@given(instances())
def test_equal_inputs_give_equal_plans(instance: PlanningInstance) -> None:
    first, second = solve(instance, AMPLE, seed=7), solve(instance, AMPLE, seed=7)
    assert first.started == second.started
    assert (first.objective, first.bound, first.status) == (second.objective, second.bound, second.status)


@settings(max_examples=examples(100))
@given(instances())
def test_starting_a_member_on_its_best_option_always_pays(instance: PlanningInstance) -> None:
    costs = option_costs(instance)
    for index in range(len(instance.classes)):
        assert costs.cost[costs.option_class == index].min() < costs.leave[index]
