"""Which options a stage leaves out: those in whose place another one costs no more and takes no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from callsheet.scheduler.planner.question.instance import Option, PlanningInstance
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.solve import solve_stage

from tests.support.planning_instances import one_stage, optimum, optimum_of_all_options, planning_class, resource

CPU, GPU = 0, 1


def option(cores: int, seconds: float, place: str = "pool", gpus: int = 0) -> Option:
    """A way to start a member on some cores."""
    charges = ((CPU, cores), (GPU, gpus)) if gpus else ((CPU, cores),)
    return Option(place, {"cpu": cores}, seconds, 0.0, charges)


def question(options: Sequence[Option], limits: Sequence[int] | None = None, *, count: int = 3) -> PlanningInstance:
    """A class with some options, where it pays to start a member by any of them: resources are held for long."""
    rows = (resource("cpu@pool", 8, hold_s=1000.0), resource("gpu@pool", 4, hold_s=1000.0))
    return PlanningInstance(rows, (planning_class("class", options, count=count, limits=limits),))


def kept(instance: PlanningInstance) -> list[int]:
    """Indexes of the options that a stage decides about."""
    found: list[int] = one_stage(instance).options.tolist()
    return found


def test_a_wider_option_that_is_no_faster_is_left_out() -> None:
    assert kept(question([option(1, 4.0), option(2, 4.0), option(4, 1.0)])) == [0, 2]


def test_of_options_that_charge_the_same_the_cheapest_is_kept() -> None:
    assert kept(question([option(2, 4.0), option(2, 4.0)])) == [0]
    assert kept(question([option(1, 4.0), option(2, 3.9), option(2, 9.0)])) == [0]


def test_an_option_that_takes_less_of_something_stays() -> None:
    assert kept(question([option(1, 4.0, gpus=1), option(2, 4.5)])) == [0, 1]


def test_options_of_other_places_outdo_nothing() -> None:
    assert kept(question([option(1, 4.0), option(2, 4.0, place="elsewhere")])) == [0, 1]


@pytest.mark.parametrize(("limit", "left"), [(3, [0]), (2, [0, 1])])
def test_an_option_with_a_limit_of_its_own_takes_the_place_of_no_other(limit: int, left: list[int]) -> None:
    instance = question([option(1, 4.0), option(2, 4.0)], limits=[limit, 3])
    assert kept(instance) == left
    stage = one_stage(instance)
    assert optimum(stage) == pytest.approx(optimum_of_all_options(instance))
    solved = solve_stage(stage, Budget(seconds=1.0, deterministic=True), seed=1)
    assert solved.counts.objective == pytest.approx(optimum(stage))
