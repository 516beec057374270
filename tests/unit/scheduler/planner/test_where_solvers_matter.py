"""What each of the round's solvers gets of what could be gained, for each thing that makes assignment hard.

The table in docs/concepts/planner.md has these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from callsheet.scheduler.planner.question.instance import Option, PlanningClass, PlanningInstance
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.greedy import greedy
from callsheet.scheduler.planner.solvers.solve import solve_stage
from callsheet.scheduler.planner.solvers.stage import Counts, Stage, Status

from tests.support.planning_instances import one_stage, optimum, planning_class, resource

AMPLE = Budget(seconds=1.0, deterministic=True)


def several_scarce_resources() -> PlanningInstance:
    """The densest option blocks two others that share nothing and are worth more together."""
    both = planning_class("both", [Option("pool", {}, 1.0, charges=((0, 3), (1, 3)))])
    first = planning_class("cpu", [Option("pool", {}, 1.2, charges=((0, 5),))])
    second = planning_class("memory", [Option("pool", {}, 1.2, charges=((1, 5),))])
    return PlanningInstance((resource("cpu@pool", 5), resource("memory@pool", 5)), (both, first, second))


def chunks(job: str) -> tuple[PlanningClass, PlanningClass]:
    """Chunks of 3 are densest but leave one of four units idle; chunks of 2 fill them."""
    wide = planning_class("wide", [Option("gpu", {}, 1.0, charges=((0, 3),))], weight=1.55, job=job)
    narrow = planning_class("narrow", [Option("gpu", {}, 1.0, charges=((0, 2),))], count=2, job=job)
    return wide, narrow


def counts_that_only_together_fill_a_resource() -> PlanningInstance:
    return PlanningInstance((resource("gpu@pool", 4),), chunks("job"))


def fair_shares() -> PlanningInstance:
    """Each of two jobs may have four of eight units, which its densest option does not divide."""
    other = planning_class("other", [Option("gpu", {}, 1.0, charges=((0, 2),))], count=2, job="job-b")
    return PlanningInstance((resource("gpu@pool", 8),), (*chunks("job-a"), other))


def affinity() -> PlanningInstance:
    """Both want the engine that has their prefix; one slot is free there, and one of them loses little."""
    attached = [Option("a", {}, 2.0, 0.0, ((0, 1),)), Option("b", {}, 2.0, 9.0, ((1, 1),))]
    loose = [Option("a", {}, 1.8, 0.0, ((0, 1),)), Option("b", {}, 1.8, 0.1, ((1, 1),))]
    classes = (planning_class("attached", attached), planning_class("loose", loose))
    return PlanningInstance((resource("slots@a", 1), resource("slots@b", 1)), classes)


def unlike_engines() -> PlanningInstance:
    """Both kinds of work are faster on the engine rich in compute; only prefill-heavy work is so by much."""
    prefill = [Option("compute", {}, 4.0, 0.0, ((0, 1),)), Option("bandwidth", {}, 9.0, 0.0, ((1, 1),))]
    decode = [Option("compute", {}, 3.0, 0.0, ((0, 1),)), Option("bandwidth", {}, 3.4, 0.0, ((1, 1),))]
    classes = (planning_class("prefill", prefill, count=2), planning_class("decode", decode, count=2))
    return PlanningInstance((resource("slots@compute", 2), resource("slots@bandwidth", 2)), classes)


def one_scarce_resource() -> PlanningInstance:
    """Unlike durations and weights, one unit each: the greedy's order is best."""
    classes = [
        planning_class(f"class-{index}", [Option("pool", {}, 1.0 + index, charges=((0, 1),))], count=3, weight=2.0)
        for index in range(3)
    ]
    return PlanningInstance((resource("cpu@pool", 5),), tuple(classes))


@dataclass(frozen=True, slots=True)
class Reached:
    """Share of the possible gain by the greedy, and how the stage was solved with CP-SAT behind it."""

    greedy: float
    solved_by: Status


CASES: dict[Callable[[], PlanningInstance], Reached] = {
    several_scarce_resources: Reached(0.60, Status.OPTIMAL),
    counts_that_only_together_fill_a_resource: Reached(0.775, Status.OPTIMAL),
    fair_shares: Reached(0.888, Status.OPTIMAL),
    affinity: Reached(1.0, Status.OPTIMAL),
    unlike_engines: Reached(1.0, Status.OPTIMAL),
    one_scarce_resource: Reached(1.0, Status.OPTIMAL),
}


def gain(stage: Stage, counts: Counts) -> float:
    """What a solution saves over starting nothing."""
    return stage.baseline - counts.objective


@pytest.mark.parametrize(("make", "reached"), CASES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_what_each_solver_gains(make: Callable[[], PlanningInstance], reached: Reached) -> None:
    stage = one_stage(make(), fair=make is fair_shares)
    possible = stage.baseline - optimum(stage)
    first = greedy(stage).counts
    solved = solve_stage(stage, AMPLE, seed=1)
    assert gain(stage, first) / possible == pytest.approx(reached.greedy, abs=0.005)
    assert gain(stage, solved.counts) / possible == pytest.approx(1.0, rel=2e-4)
    assert solved.status is reached.solved_by
    # What is printed as the gap holds: the bound is proved, not only the solution found.
    assert stage.baseline - solved.bound == pytest.approx(possible, rel=2e-4)


@pytest.mark.parametrize("make", CASES, ids=lambda each: each.__name__)
def test_a_model_without_most_options_claims_no_better_bound(make: Callable[[], PlanningInstance]) -> None:
    stage = one_stage(make(), fair=make is fair_shares)
    assigned = solve_stage(stage, replace(AMPLE, max_options=0), seed=1)
    assert assigned.bound <= optimum(stage) + 1e-6 <= assigned.counts.objective + 2e-6
