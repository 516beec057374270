"""The answer to a planning question: what is started where, shares, priorities, turns, and the model that prints."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.scheduler.planner.question.instance import JobShare, Option, PlanningInstance
from callsheet.scheduler.planner.solvers.cp_sat import AssignmentModel, Budget
from callsheet.scheduler.planner.solvers.greedy import greedy
from callsheet.scheduler.planner.solvers.solve import Solution, solve
from callsheet.scheduler.planner.solvers.stage import Status

from tests.support.planning_instances import one_stage, planning_class, resource

AMPLE = Budget(seconds=1.0, deterministic=True)
GREEDY_ONLY = Budget(seconds=0.0)


def started(solution: Solution, instance: PlanningInstance) -> dict[tuple[str, str], int]:
    """Members by class and place."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in solution.started:
        counts[str(instance.classes[each.class_index].key), str(each.option.place)] += each.members
    return counts


def test_affinity_moves_the_one_that_loses_least() -> None:
    """Both want the pool that has their prefix; only one slot is free there."""
    attached = planning_class(
        "attached",
        [Option("a", {}, 2.0, 0.0, ((0, 1),)), Option("b", {}, 2.0, 9.0, ((1, 1),))],
    )
    loose = planning_class(
        "loose",
        [Option("a", {}, 1.8, 0.0, ((0, 1),)), Option("b", {}, 1.8, 0.1, ((1, 1),))],
    )
    instance = PlanningInstance((resource("slots@a", 1), resource("slots@b", 1)), (attached, loose))
    assert started(solve(instance, AMPLE), instance) == {("attached", "a"): 1, ("loose", "b"): 1}


def test_heterogeneous_engines_get_the_work_they_are_good_at() -> None:
    """Prefill-heavy work goes to the engine rich in compute, decode-heavy work to the one rich in bandwidth."""
    prefill = planning_class(
        "prefill", [Option("compute", {}, 4.0, 0.0, ((0, 1),)), Option("bandwidth", {}, 9.0, 0.0, ((1, 1),))], count=2
    )
    decode = planning_class(
        "decode", [Option("compute", {}, 3.5, 0.0, ((0, 1),)), Option("bandwidth", {}, 3.4, 0.0, ((1, 1),))], count=2
    )
    instance = PlanningInstance((resource("slots@compute", 2), resource("slots@bandwidth", 2)), (prefill, decode))
    solution = solve(instance, AMPLE)
    assert started(solution, instance) == {("prefill", "compute"): 2, ("decode", "bandwidth"): 2}


def test_jobs_are_kept_to_their_shares_first_and_what_is_left_goes_to_whoever_can_use_it() -> None:
    option = Option("pool", {}, 1.0, charges=((0, 1),))
    many = planning_class("many", [option], count=50, job="large", weight=5.0)
    few = planning_class("few", [Option("pool", {}, 20.0, charges=((0, 1),))], count=3, job="small")
    instance = PlanningInstance(
        (resource("cpu@pool", 12),), (many, few), shares={"large": JobShare(3.0), "small": JobShare(1.0)}
    )
    assert started(solve(instance, AMPLE), instance) == {("many", "pool"): 9, ("few", "pool"): 3}
    instance = PlanningInstance(instance.resources, (many, few), shares={"large": JobShare(3.0, {"cpu": 9})})
    assert started(solve(instance, AMPLE), instance)["few", "pool"] == 3


def test_what_a_job_does_not_use_of_its_share_goes_to_the_others() -> None:
    option = Option("pool", {}, 1.0, charges=((0, 1),))
    many, few = planning_class("many", [option], count=50, job="large"), planning_class("few", [option], job="small")
    instance = PlanningInstance((resource("cpu@pool", 12),), (many, few))
    assert started(solve(instance, AMPLE), instance) == {("many", "pool"): 11, ("few", "pool"): 1}


def test_what_a_job_has_running_counts_in_its_share() -> None:
    many = planning_class("many", [Option("pool", {}, 1.0, charges=((0, 1),))], count=50, job="large", weight=5.0)
    few = planning_class("few", [Option("pool", {}, 20.0, charges=((0, 1),))], count=3, job="small")
    cores = resource("cpu@pool", 3, capacity=12)
    shares = {"large": JobShare(3.0, {"cpu": 9}), "small": JobShare(1.0)}
    instance = PlanningInstance((cores,), (many, few), shares=shares)
    assert started(solve(instance, AMPLE), instance) == {("few", "pool"): 3}


def test_a_share_is_never_too_small_for_one_member() -> None:
    narrow = planning_class("narrow", [Option("pool", {}, 1.0, charges=((0, 1),))], count=4, job="large")
    wide = planning_class("wide", [Option("pool", {}, 1.0, charges=((0, 3),))], job="small", weight=50.0)
    shares = {"large": JobShare(9.0), "small": JobShare(1.0)}
    instance = PlanningInstance((resource("cpu@pool", 4),), (narrow, wide), shares=shares)
    assert started(solve(instance, AMPLE), instance) == {("wide", "pool"): 1, ("narrow", "pool"): 1}


def test_priority_classes_are_strict() -> None:
    option = Option("pool", {}, 1.0, charges=((0, 1),))
    evaluation = planning_class("eval", [Option("pool", {}, 500.0, charges=((0, 2),))], count=2, priority=1)
    training = planning_class("train", [option], count=9, priority=2, weight=100.0)
    instance = PlanningInstance((resource("cpu@pool", 5),), (evaluation, training))
    assert started(solve(instance, AMPLE), instance) == {("eval", "pool"): 2, ("train", "pool"): 1}


def test_waiting_for_the_fast_engine_can_be_better_than_the_slow_one_now() -> None:
    fast, slow = resource("slots@fast", 0, capacity=4, hold_s=2.0), resource("slots@slow", 4)
    options = [Option("fast", {}, 2.0, 0.0, ((0, 1),)), Option("slow", {}, 40.0, 0.0, ((1, 1),))]
    assert solve(PlanningInstance((fast, slow), (planning_class("a", options),)), AMPLE).started == ()
    busy = resource("slots@fast", 0, capacity=4, hold_s=400.0)
    assert len(solve(PlanningInstance((busy, slow), (planning_class("a", options),)), AMPLE).started) == 1


def test_short_actions_go_first_and_old_ones_come_to_their_turn() -> None:
    def two(overdue_s: float) -> PlanningInstance:
        short = planning_class("short", [Option("pool", {}, 1.0, charges=((0, 1),))])
        long = planning_class("long", [Option("pool", {}, 10.0, charges=((0, 1),))], overdue_s=overdue_s)
        return PlanningInstance((resource("cpu@pool", 1),), (short, long))

    assert list(started(solve(two(0.0), AMPLE), two(0.0))) == [("short", "pool")]
    assert list(started(solve(two(10.0), AMPLE), two(10.0))) == [("long", "pool")]


def test_of_the_overdue_the_longest_overdue_goes_first() -> None:
    short = planning_class("short", [Option("pool", {}, 1.0, charges=((0, 1),))], overdue_s=5.0)
    long = planning_class("long", [Option("pool", {}, 10.0, charges=((0, 1),))], overdue_s=50.0)
    instance = PlanningInstance((resource("cpu@pool", 1),), (short, long))
    assert list(started(solve(instance, AMPLE), instance)) == [("long", "pool")]


def test_an_elastic_action_is_wide_on_an_idle_pool_and_narrow_in_a_crowd() -> None:
    widths = [Option("pool", {"cpu": units}, 10.0 / units**0.8, charges=((0, units),)) for units in (1, 2, 4, 8)]
    alone = PlanningInstance((resource("cpu@pool", 8),), (planning_class("test", widths),))
    assert [each.option.units for each in solve(alone, AMPLE).started] == [{"cpu": 8}]
    crowd = PlanningInstance((resource("cpu@pool", 8),), (planning_class("test", widths, count=100),))
    assert [(each.option.units, each.members) for each in solve(crowd, AMPLE).started] == [({"cpu": 1}, 8)]


def test_where_nothing_is_short_no_solver_runs() -> None:
    option = Option("pool", {}, 1.0, charges=((0, 1),))
    instance = PlanningInstance((resource("cpu@pool", 100),), (planning_class("a", [option], count=50),))
    solution = solve(instance, AMPLE)
    assert (solution.status, solution.gap) == (Status.BOUND, 0.0)
    assert solve(PlanningInstance((), ()), AMPLE).status is Status.EMPTY


def test_without_a_budget_the_greedy_decides_and_says_so() -> None:
    option = Option("pool", {}, 1.0, charges=((0, 1),))
    instance = PlanningInstance((resource("cpu@pool", 3),), (planning_class("a", [option], count=9),))
    solution = solve(instance, GREEDY_ONLY)
    assert (solution.status, sum(each.members for each in solution.started)) == (Status.FALLBACK, 3)


def test_what_others_took_of_the_time_for_an_answer_is_not_cp_sats() -> None:
    """The greedy's answer counts then; deterministic time knows no stopwatch."""
    wide = planning_class("wide", [Option("gpu", {}, 1.0, charges=((0, 3),))], weight=1.55)
    narrow = planning_class("narrow", [Option("gpu", {}, 1.0, charges=((0, 2),))], count=2)
    instance = PlanningInstance((resource("gpu@pool", 4),), (wide, narrow))
    budget = Budget(seconds=30.0)
    late = solve(instance, budget, stopwatch=itertools.count(0.0, 60.0).__next__)
    assert (late.status, started(late, instance)) == (Status.FALLBACK, {("wide", "gpu"): 1})
    in_time = solve(instance, budget, stopwatch=lambda: 7.0)
    assert (in_time.status, started(in_time, instance)) == (Status.OPTIMAL, {("narrow", "gpu"): 2})
    exact = solve(instance, replace(budget, deterministic=True), stopwatch=itertools.count(0.0, 60.0).__next__)
    assert exact.status is Status.OPTIMAL


def test_two_percent_are_worth_a_solver() -> None:
    """Chunks of 3 are densest, but 13 of them leave one of 40 units idle; the greedy stops there."""
    wide = planning_class("wide", [Option("gpu", {}, 1.0, charges=((0, 3),))], count=20, weight=1.55)
    narrow = planning_class("narrow", [Option("gpu", {}, 1.0, charges=((0, 2),))], count=20)
    instance = PlanningInstance((resource("gpu@pool", 40),), (wide, narrow))
    solution = solve(instance, AMPLE)
    assert solution.status is Status.OPTIMAL
    assert started(solution, instance) == {("wide", "gpu"): 12, ("narrow", "gpu"): 2}


def test_the_dispatch_cap_bounds_a_round() -> None:
    option = Option("pool", {}, 1.0)
    instance = PlanningInstance((), (planning_class("a", [option], count=9),), dispatch_cap=4)
    assert sum(each.members for each in solve(instance, AMPLE).started) == 4


@pytest.fixture
def interrupt_caught() -> Iterator[Callable[[], bool]]:
    """Tells whether this process catches SIGINT as the kernel sees it, which Python itself would not know."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def caught() -> bool:
        lines = Path("/proc/self/status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)

    yield caught
    signal.signal(signal.SIGINT, before)


def test_solvers_leave_the_handling_of_signals_alone(interrupt_caught: Callable[[], bool]) -> None:
    options = [Option("a", {}, 2.0, charges=((0, 1),)), Option("b", {}, 2.0, 9.0, charges=((1, 1),))]
    instance = PlanningInstance(
        (resource("slots@a", 1), resource("slots@b", 1)), (planning_class("class", options, count=2),)
    )
    stage = one_stage(instance)
    model = AssignmentModel(stage, greedy(stage).counts, max_options=10)
    assert interrupt_caught()
    assert model.solve(AMPLE, seed=1).status is Status.OPTIMAL
    assert interrupt_caught()
