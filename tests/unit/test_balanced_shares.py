"""How what waits divides among resources of a kind."""

from __future__ import annotations

import numpy as np
import pytest
from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.question.balance import balanced_shares
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, node, service

# A class that can use the first of two resources only, and one that can use both.
GROUP = np.array([0, 1, 1])
RESOURCE = np.array([0, 0, 1])


def shares_of_flexible(
    bound: float, flexible: float, capacity: tuple[float, float], fixed_at_second: float
) -> list[float]:
    """Shares of the class that can use both resources."""
    weight = np.array([bound, flexible, flexible])
    share = balanced_shares(GROUP, RESOURCE, weight, np.array(capacity), np.array([0.0, fixed_at_second]))
    assert share[0] == 1.0
    return [float(each) for each in share[1:]]


def test_prices_become_equal() -> None:
    first, second = shares_of_flexible(130.0, 310.0, (8.0, 2.0), 0.0)
    assert (130.0 + 310.0 * first) / 8.0 == pytest.approx(310.0 * second / 2.0, rel=0.02)


def test_what_waits_outside_the_model_counts() -> None:
    first, second = shares_of_flexible(10.0, 100.0, (4.0, 4.0), 50.0)
    assert 10.0 + 100.0 * first == pytest.approx(50.0 + 100.0 * second, rel=0.02)


def test_where_prices_cannot_be_equal_all_goes_to_the_cheaper_one() -> None:
    first, second = shares_of_flexible(1000.0, 10.0, (8.0, 2.0), 0.0)
    assert first == pytest.approx(0.0, abs=0.01)
    assert second == pytest.approx(1.0, abs=0.01)


def test_a_resource_without_units_gets_nothing() -> None:
    assert shares_of_flexible(1.0, 10.0, (8.0, 0.0), 0.0) == [1.0, 0.0]


def test_an_idle_unit_is_used_though_wide_actions_wait_for_its_node() -> None:
    world = CoreWorld(planner=ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True))))
    world.job()
    score = service("score", [ActionKind.REWARD])
    large = world.manager("large", score, on=node("large", 1, gpu=4))
    world.manager("small", score, on=node("small", 1, gpu=1))
    for index in range(5):
        world.submit(action_request(f"narrow{index}", ActionKind.REWARD, demand=fixed(gpu=1), expected=1.0))
    world.plan()
    for index in range(30):
        world.submit(action_request(f"wide{index}", ActionKind.REWARD, demand=fixed(gpu=4), expected=1.0))
    for index in range(5, 25):
        world.submit(action_request(f"narrow{index}", ActionKind.REWARD, demand=fixed(gpu=1), expected=1.0))
    large.run(next(f"narrow{index}" for index in range(5) if large.has(f"narrow{index}")))
    assert len(world.plan().assignments) == 1
