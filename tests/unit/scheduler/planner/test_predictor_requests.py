"""What predictors are asked for a request of the core, and how its curve is read."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.model import ActionKind, Demand, SpeedUp
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.requests import amdahl_hint, predict, relative_units
from callsheet.scheduler.planner.round.estimates import Estimates

from tests.support.core_requests import action_request, elastic, fixed


def test_a_demand_without_a_choice_of_units_has_no_curve() -> None:
    assert amdahl_hint(fixed(cpu=4)) == 1.0
    assert amdahl_hint(Demand()) == 1.0
    assert relative_units(fixed(cpu=4), {"cpu": 4}) == 1.0


def test_units_are_counted_in_multiples_of_the_fewest() -> None:
    assert relative_units(elastic(2, 8), {"cpu": 6}) == 3.0
    assert relative_units(elastic(0, 8), {"cpu": 4}) == 4.0
    assert relative_units(elastic(2, 8), {}) == 1.0


def test_the_clients_fraction_is_the_hint() -> None:
    assert amdahl_hint(elastic(1, 8, speed_up=SpeedUp(0.7))) == 0.7


def test_measured_points_are_read_as_the_fraction_that_has_their_last_speed_up() -> None:
    points = SpeedUp(points=((2, 1.6), (4, 2.5)))
    assert SpeedUp(amdahl_hint(elastic(1, 4, speed_up=points))).at(4, 1) == pytest.approx(2.5)
    assert amdahl_hint(elastic(1, 4, speed_up=SpeedUp(points=((4, 0.5),)))) == 0.0


def test_the_planner_believes_the_clients_curve_until_runs_tell_better() -> None:
    demand = elastic(1, 8, speed_up=SpeedUp(0.4))
    request = action_request("a", ActionKind.REWARD, demand=demand)
    estimates = Estimates(Predictors())
    prediction = estimates.of_request(request)
    assert prediction == predict(Predictors(), request)
    assert prediction is not None
    assert prediction.amdahl_fraction == pytest.approx(0.4)
    alone, wide = estimates.of_grant(request, {"cpu": 1}), estimates.of_grant(request, {"cpu": 8})
    assert alone is not None
    assert wide is not None
    assert alone.execution_s / wide.execution_s == pytest.approx(SpeedUp(0.4).at(8, 1))
