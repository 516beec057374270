"""What the price of an option counts of those that are expected to come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.planner.question.instance import Arrivals, Option, PlanningInstance
from callsheet.scheduler.planner.question.price import option_costs

from tests.support.planning_instances import planning_class, resource

_MANY = Arrivals(rate=10.0, limit=100.0)


def _cost(arrivals: Arrivals, *, units: int, free: int) -> float:
    """Cost of an action of 10 s on some of 64 cores."""
    cores = replace(resource("cpu@pool", free, capacity=64), arrivals=arrivals)
    suite = planning_class("suite", [Option("node", {"cpu": units}, 10.0, charges=((0, units),))])
    return float(option_costs(PlanningInstance((cores,), (suite,), dispatch_cap=1)).cost[0])


def test_an_option_that_takes_the_last_of_a_resource_pays_for_those_that_come() -> None:
    # 100 * (1 - exp(-10 * 10 / 100)) = 63.2 come within 10 s, and wait for half of it for 8 of 64 cores.
    assert _cost(_MANY, units=8, free=8) == pytest.approx(10.0 + 10.0 * 8 / 64 * 63.2 / 2, rel=1e-3)


def test_an_option_that_leaves_enough_pays_nothing_for_those_that_come() -> None:
    assert _cost(_MANY, units=8, free=48) == pytest.approx(10.0, abs=1e-3)


def test_the_less_is_left_the_more_is_paid() -> None:
    costs = [_cost(_MANY, units=8, free=free) for free in (24, 18, 12, 9, 8)]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]


def test_where_nobody_is_expected_nothing_is_paid() -> None:
    assert _cost(Arrivals(), units=8, free=8) == pytest.approx(10.0)
