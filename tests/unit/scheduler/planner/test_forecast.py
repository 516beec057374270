"""The forecast of a queue against cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.planner.answers.forecast import forecast
from callsheet.scheduler.planner.question.instance import Option, PlanningInstance

from tests.support.planning_instances import planning_class, resource


def commands(count: int, seconds: float, units: int = 1, name: str = "c") -> PlanningInstance:
    """One class on a pool of four cores."""
    option = Option("pool", {"cpu": units}, seconds, charges=((0, units),))
    return PlanningInstance((resource("cpu@pool", 4),), (planning_class(name, [option], count=count),))


def test_what_fits_at_once_waits_for_nothing() -> None:
    found = forecast(commands(4, 2.0))
    assert (found.waiting, found.start_now, found.stuck) == (4, 4, 0)
    assert (found.mean_wait_s, found.mean_end_s) == (0.0, 2.0)


def test_a_queue_drains_in_waves() -> None:
    found = forecast(commands(12, 2.0))
    assert (found.start_now, found.stuck) == (4, 0)
    assert found.mean_wait_s == pytest.approx((0.0 + 2.0 + 4.0) / 3, rel=0.1)
    assert found.mean_end_s == pytest.approx(found.mean_wait_s + 2.0)


def test_what_is_in_use_comes_back() -> None:
    option = Option("pool", {"cpu": 1}, 1.0, charges=((0, 1),))
    rows = (resource("cpu@pool", 0, capacity=8, hold_s=10.0),)
    found = forecast(PlanningInstance(rows, (planning_class("c", [option], count=8),)))
    assert (found.start_now, found.stuck) == (0, 0)
    # Eight draws from an exponential distribution of mean 10 s, less what ends of the eight spare the last ones.
    assert 2.0 < found.mean_wait_s < 10.0


def test_what_is_expected_back_comes_when_it_is_expected() -> None:
    option = Option("pool", {"cpu": 1}, 1.0, charges=((0, 1),))
    rows = (replace(resource("cpu@pool", 0, capacity=2, hold_s=0.8), returns=((100.0, 1), (300.0, 1))),)
    found = forecast(PlanningInstance(rows, (planning_class("c", [option], count=1),)))
    assert found.mean_wait_s == pytest.approx(100.0)


def test_what_can_never_start_is_said_to_be_stuck() -> None:
    found = forecast(commands(3, 2.0, units=5))
    assert (found.waiting, found.stuck, found.start_now) == (3, 3, 0)


def test_short_ones_go_first_when_not_all_can_start() -> None:
    short = Option("pool", {"cpu": 4}, 1.0, charges=((0, 4),))
    long = Option("pool", {"cpu": 4}, 50.0, charges=((0, 4),))
    classes = (planning_class("long", [long]), planning_class("short", [short], count=3))
    found = {each.key: each for each in forecast(PlanningInstance((resource("cpu@pool", 4),), classes)).classes}
    assert found["short"].mean_wait_s < found["long"].mean_wait_s


def test_nothing_waits_in_an_empty_queue() -> None:
    found = forecast(PlanningInstance((resource("cpu@pool", 4),), ()))
    assert (found.waiting, found.mean_end_s, found.classes) == (0, 0.0, ())


def test_a_queue_too_long_for_the_rounds_flows_at_the_rate_of_the_scarcest_resource() -> None:
    found = forecast(commands(100_000, 1.0))
    assert found.stuck == 0
    assert found.mean_wait_s == pytest.approx(100_000 / 4 / 2, rel=0.02)
    twice = commands(100_000, 1.0)
    found = forecast(replace(twice, resources=(resource("cpu@pool", 8),)))
    assert found.mean_wait_s == pytest.approx(100_000 / 8 / 2, rel=0.02)
