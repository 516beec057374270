"""The elastic planner in a closed system: proposals always fit, nothing that fits an idle node starves."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core import commands
from callsheet.scheduler.core.model import Timeouts
from callsheet.scheduler.planner.assignment import Budget
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closed_system import JOBS, ClosedSystem, Job
from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld

BUDGETS = [Budget(seconds=0.0), Budget(seconds=0.05, deterministic=True)]


@given(JOBS, st.sampled_from([0.0, 2.0, 5.0]), st.sampled_from(BUDGETS), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_in_a_closed_system_everything_that_fits_an_idle_node_starts(
    jobs: list[Job], hold_after: float, budget: Budget, cap: int
) -> None:
    planner = ElasticPlanner(ElasticSettings(budget=budget, hold_after=hold_after, dispatch_cap=cap))
    ClosedSystem(jobs, planner).play()


@given(JOBS)
@settings(max_examples=30, deadline=None)
def test_equal_histories_are_planned_alike(jobs: list[Job]) -> None:
    def rounds() -> int:
        return ClosedSystem(jobs, ElasticPlanner(ElasticSettings(budget=BUDGETS[1]))).play()

    assert rounds() == rounds()


@pytest.mark.parametrize("long_s", [20.0, 60.0])
def test_a_stream_of_short_actions_does_not_starve_a_long_one(long_s: float) -> None:
    """Short actions come for ever, two for each that ends; the long one starts when it has waited its slowdown."""
    world = CoreWorld(planner=ElasticPlanner(ElasticSettings(ageing=0.5)))
    manager = world.manager(cores=1)
    world.job()
    world.submit(action_request("s0", demand=fixed(cpu=1), expected=1.0))
    world.plan()
    forever = Timeouts(1e6, 1e6, 1e6)
    world.submit(action_request("long", demand=fixed(cpu=1), expected=long_s, timeouts=forever))
    running = "s0"
    for second in range(1, int(6 * long_s)):
        for twin in ("a", "b"):
            world.submit(action_request(f"s{second}{twin}", demand=fixed(cpu=1), expected=1.0))
        manager.live(1.0)
        manager.run(running)
        world.plan()
        started = [each.request.key.action_id for each in manager.stream.all(commands.Dispatch)]
        if "long" in started:
            assert second >= long_s
            return
        running = started[-1]
    pytest.fail(f"the long action never started: {world.why('long')}")
